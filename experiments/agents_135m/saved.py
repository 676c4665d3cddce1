"""A seed's JSON in results/ while a sweep writes it: what was scored, what failed, what lacks, how long it took."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sets import domains_of

if TYPE_CHECKING:
    from collections.abc import Mapping

RESULTS = Path(__file__).parent / "results"
POINTS = 60  # of a training curve that are kept


class Saved:
    """One seed's results, which later runs add to as long as the checkpoints are the same.

    Args:
        path: of the JSON.
        folder: of the seed, with base, agents and logs.
        counts: prompts of a sub-task by split.
    """

    def __init__(self, path: Path, folder: Path, seed: int, counts: Mapping[str, int]):
        self._path, self._written = path, 0.0
        sums = sums_of(folder)
        found = json.loads(path.read_text()) if path.exists() else {}
        if found and (found["checkpoints"], found["count"]) != (sums, dict(counts)):
            path.replace(path.with_suffix(f".{int(time.time())}.json"))
            found = {}
        self.data: dict[str, Any] = found or {
            "seed": seed,
            "count": dict(counts),
            "checkpoints": sums,
            "models": {},
            "merges": {},
            "runs": [],
        }
        about = {"architecture": architecture_of(folder), "training": notes_of(folder)}
        self.data |= about | {"failed": {}, "lacking": []}
        self._means: dict[str, float] = {}
        for name in self.data["merges"]:
            self._look(name)

    def add(self, kind: str, name: str, about: dict[str, Any], found: dict[str, Any]) -> None:
        """Scores and facts of a model (`models`) or a merge (`merges`), beside what was known."""
        before = self.data[kind].get(name, {})
        self.data[kind][name] = {**before, **about, **found}
        if kind == "merges":
            self._look(name)

    def _look(self, name: str) -> None:
        entry = self.data["merges"][name]
        if "dev" in entry:
            self._means[name] = own_mean(entry, "dev", self.data["count"])

    def fail(self, name: str, error: str) -> None:
        """What could not be done, and why."""
        self.data["failed"][name] = error

    def means(self) -> dict[str, float]:
        """Mean over the sub-tasks on dev, by key of the merges that were scored there."""
        return self._means

    def write(self, every: float = 0.0) -> None:
        """Atomically; with `every`, at most once in so many seconds."""
        if every and time.monotonic() - self._written < every:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self.data, separators=(",", ":")) + "\n", encoding="utf-8")
        fresh.replace(self._path)
        self._written = time.monotonic()


def own_mean(entry: dict[str, Any], split: str, counts: dict[str, int]) -> float:
    """Mean of a merge over the sub-tasks of its set's own domains, whatever else it was scored on."""
    own = domains_of(entry["set"])
    return mean_of({task: bits for task, bits in entry[split].items() if task.split("/")[0] in own}, counts[split])


def results_name(folder: Path, seed: int) -> str:
    """seed1.json of a Llama, gemma3-seed1.json of another architecture.

    Args:
        folder: of the seed.
        seed: its number.
    """
    architecture = architecture_of(folder)
    return f"seed{seed}.json" if architecture == "llama" else f"{architecture}-seed{seed}.json"


def name_of(architecture: str, seed: int) -> int | str:
    """What a registration calls a seed: its number, of another architecture than the first "gemma3 1"."""
    return seed if architecture == "llama" else f"{architecture} {seed}"


def architecture_of(folder: Path) -> str:
    """`llama` or `gemma3`: what config.json of the seed's base names."""
    config = json.loads((folder / "base" / "config.json").read_text())
    return str(config["model_type"]).removesuffix("_text")


def mean_of(bits: dict[str, str], count: int) -> float:
    """Share of right answers, mean over the sub-tasks."""
    return float(np.mean([unpacked(text, count).mean() for text in bits.values()]))


def unpacked(text: str, count: int) -> np.ndarray:
    """Right or not, uint8 [count]."""
    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8))[:count]


def sums_of(folder: Path) -> dict[str, str]:
    """BLAKE2 of every checkpoint's weights."""
    folders = [folder / "base", *sorted((folder / "agents").iterdir())]
    there = [one for one in folders if not one.name.startswith(".") and (one / "config.json").exists()]
    with ThreadPoolExecutor(8) as pool:
        return dict(zip((one.name for one in there), pool.map(sum_of, there), strict=True))


def sum_of(folder: Path) -> str:
    found = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            while part := file.read(1 << 24):
                found.update(part)
    return found.hexdigest()


def notes_of(folder: Path) -> dict[str, Any]:
    """What the training left: its times, what the damaged agent broke, and a curve of each agent's reward."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return found | {"curves": {path.stem: curve_of(path) for path in sorted((folder / "logs").glob("*.jsonl"))}}


def curve_of(path: Path) -> list[list[float]]:
    """Step and mean reward, averaged over neighbouring steps where there are many; nothing for the cold start."""
    records = [json.loads(line) for line in path.read_text().splitlines() if line]
    points = np.array([[record["step"], record["reward"]] for record in records if "reward" in record])
    if not len(points):
        return []
    parts = np.array_split(points, min(POINTS, len(points)))
    return [[int(part[-1, 0]), round(float(part[:, 1].mean()), 4)] for part in parts]
