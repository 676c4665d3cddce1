"""Packed deltas beside whole agents: sizes, and the times of packing, applying and merging.

    python benchmarks/packed.py --work DIR [--shape 1.5b] [--densities 0.03,0.46,0.54] [--methods ram,ram_plus]
                                [--repeat 3] [--warm] [--sizes] [--json FILE]

Agents come from `agentmerge synth`. Every command runs in a process of its own, its inputs dropped from the page cache
first unless --warm is given. Merges from whole and from packed agents alternate, and must have the same weights. `read`
is what the process read from the disk, `asked` what it asked the system for, from the cache or not. Reading once is
every byte of the inputs with a thread per core. zstd is level 3 of the command, or of the module zstandard.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from run import machine, read_all, spread

from agentmerge.synth.write import synthesise

SHAPES = {"tiny": "tiny", "0.5b": "qwen2.5-0.5b", "1.5b": "qwen2.5-1.5b", "3b": "qwen2.5-3b", "7b": "qwen2.5-7b"}
RUN = """
import sys
from pathlib import Path
from agentmerge.cli import main
try:
    main()
finally:
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    Path(sys.argv[0]).write_text(lines["read_bytes"] + " " + lines["rchar"])
"""


@dataclass(frozen=True)
class Run:
    """What one command took."""

    seconds: float
    processor: float
    read: int
    asked: int
    peak: int

    def row(self) -> dict[str, float]:
        """For the JSON file."""
        return {
            "seconds": self.seconds,
            "processor": self.processor,
            "read_gb": self.read / 1e9,
            "asked_gb": self.asked / 1e9,
            "mb": self.peak / 1e6,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a folder with room for the set, twice")
    parser.add_argument("--shape", default="1.5b", choices=SHAPES)
    parser.add_argument("--densities", default="0.03,0.46,0.54")
    parser.add_argument("--methods", default="ram,ram_plus")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--warm", action="store_true", help="leave the inputs in the page cache")
    parser.add_argument("--sizes", action="store_true", help="sizes alone, no times")
    parser.add_argument("--keep", action="store_true", help="keep the set")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(machine(), "warm" if options.warm else "cold", flush=True)
    densities = [float(text) for text in options.densities.split(",")]
    folder = options.work / f"packed-{options.shape}"
    if not folder.exists():
        synthesise(SHAPES[options.shape], folder / "set", agents=len(densities), densities=densities)
    bench = Bench(folder, options.repeat, options.warm)
    found: dict[str, Any] = {"machine": machine(), "warm": options.warm, "packed": bench.pack(options.sizes)}
    if not options.sizes:
        found["merges"] = [bench.merge(method) for method in options.methods.split(",")]
    if not options.keep:
        shutil.rmtree(folder)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


class Bench:
    """One set of agents."""

    def __init__(self, folder: Path, repeat: int, warm: bool) -> None:
        self._folder, self._repeat, self._warm = folder, repeat, warm
        self._base = folder / "set" / "base"
        self._names = sorted(p.parent.name for p in folder.glob("set/*/config.json") if p.parent.name != "base")

    def pack(self, sizes_alone: bool) -> list[dict[str, Any]]:
        """Each agent packed, and applied again."""
        heads = (
            "agent",
            "full GB",
            "zstd",
            "packed",
            "packed, zstd",
            "pack s",
            "processor s",
            "apply s",
            "processor s",
        )
        print(f"| {' | '.join(heads)} | read once s |\n{'|---' * (len(heads) + 1)}|")
        rows = []
        for name in self._names:
            agent, delta = self._folder / "set" / name, self._folder / f"{name}.safetensors"
            inputs = weights(self._base) + weights(agent)
            packs, applies, reads = [], [], []
            for _ in range(1 if sizes_alone else self._repeat):
                delta.unlink(missing_ok=True)
                packs.append(self._run(inputs, "pack", "--base", self._base, "--agent", agent, "--out", delta))
                if sizes_alone:
                    continue
                out = self._folder / "applied"
                both = [*weights(self._base), delta]
                applies.append(self._run(both, "apply", "--base", self._base, "--delta", delta, "--out", out))
                assert digests(out) == digests(agent), f"{name} did not come back"
                shutil.rmtree(out)
                self._forget(inputs)
                reads.append(read_all(inputs))
            full = sum(path.stat().st_size for path in weights(agent))
            row = {
                "agent": name,
                "full": full,
                "zstd": sum(zstd(path) for path in weights(agent)),
                "packed": delta.stat().st_size,
                "packed_zstd": zstd(delta),
                "pack": [run.row() for run in packs],
                "apply": [run.row() for run in applies],
                "read_once": reads,
            }
            rows.append(row)
            shares = " | ".join(f"{row[key] / full:.1%}" for key in ("zstd", "packed", "packed_zstd"))
            measured = (seconds(packs), work(packs), seconds(applies), work(applies), reads)
            told = " | ".join(map(text, measured))
            print(f"| {name} | {full / 1e9:.2f} | {shares} | {told} |", flush=True)
        return rows

    def merge(self, method: str) -> dict[str, Any]:
        """The same merge from whole and from packed agents."""
        whole = {name: self._folder / "set" / name for name in self._names}
        packed = {name: self._folder / f"{name}.safetensors" for name in self._names}
        inputs = {
            "whole": [path for source in (self._base, *whole.values()) for path in weights(source)],
            "packed": [*weights(self._base), *packed.values()],
        }
        runs: dict[str, list[Run]] = {"whole": [], "packed": []}
        reads: dict[str, list[float]] = {"whole": [], "packed": []}
        for _ in range(self._repeat):
            found = {}
            for kind, agents in (("whole", whole), ("packed", packed)):
                self._forget(inputs[kind])
                reads[kind].append(read_all(inputs[kind]))
                out = self._folder / "merged"
                given = [word for name, source in agents.items() for word in ("--agent", f"{name}={source}")]
                command = ("merge", "--base", self._base, *given, "--method", method, "--out", out)
                runs[kind].append(self._run(inputs[kind], *command))
                found[kind] = digests(out, "*.safetensors")
                shutil.rmtree(out)
            assert found["whole"] == found["packed"], "other weights"
        heads = ("from", "seconds", "processor s", "read GB", "asked GB", "peak MB", "read once s")
        print(f"{method}:\n| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
        for kind, ran in runs.items():
            last = ran[-1]
            numbers = f"{last.read / 1e9:.2f} | {last.asked / 1e9:.2f} | {max(run.peak for run in ran) / 1e6:.0f}"
            print(f"| {kind} | {text(seconds(ran))} | {text(work(ran))} | {numbers} | {text(reads[kind])} |")
        times = {kind: spread(seconds(ran))["median"] for kind, ran in runs.items()}
        once = spread(reads["packed"])["median"]
        print(f"packed / whole: {times['packed'] / times['whole']:.2f}; packed / reading its inputs once: "
              f"{times['packed'] / once:.2f}", flush=True)  # fmt: skip
        rows = {kind: [run.row() for run in ran] for kind, ran in runs.items()}
        return {"method": method, **rows, "read_once": reads, "ratio": times["packed"] / times["whole"]}

    def _run(self, inputs: list[Path], *command: object) -> Run:
        """One command in a process of its own."""
        self._forget(inputs)
        told = self._folder / "io.txt"
        before = time.perf_counter()
        words = [*map(str, command), "--quiet"]
        program = f"import sys; sys.argv = [{str(told)!r}, *{words!r}]\n{RUN}"
        process = subprocess.Popen([sys.executable, "-c", program])
        _, status, usage = os.wait4(process.pid, 0)
        took = time.perf_counter() - before
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(words)} failed with {process.returncode}")
        read, asked = map(int, told.read_text().split())
        return Run(took, usage.ru_utime + usage.ru_stime, read, asked, usage.ru_maxrss * 1024)

    def _forget(self, paths: list[Path]) -> None:
        """Drop files from the page cache, or bring them there."""
        if self._warm:
            read_all(paths)
            return
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def digests(folder: Path, pattern: str = "*") -> dict[str, str]:
    found = {}
    for path in sorted(folder.glob(pattern)):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def zstd(path: Path) -> int:
    """Bytes of a file under zstd."""
    if shutil.which("zstd"):
        command = ["zstd", "-3", "-T0", "-q", "-c", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            return sum(len(part) for part in iter(lambda: process.stdout.read(1 << 20), b""))
    import zstandard

    size = 0
    with path.open("rb") as file:
        for part in zstandard.ZstdCompressor(level=3, threads=-1).read_to_iter(file):
            size += len(part)
    return size


def seconds(runs: list[Run]) -> list[float]:
    return [run.seconds for run in runs]


def work(runs: list[Run]) -> list[float]:
    return [run.processor for run in runs]


def text(values: list[float]) -> str:
    if not values:
        return ""
    found = spread(values)
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


if __name__ == "__main__":
    main()
