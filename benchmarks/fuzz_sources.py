"""Feed the parsers of pickles, adapter configs, deltas and parts damaged input: read or refused by our own error.

    python benchmarks/fuzz_sources.py --what pickle --seconds 600
    python benchmarks/fuzz_sources.py --what adapter --seconds 600
    python benchmarks/fuzz_sources.py --what delta --seconds 600
    python benchmarks/fuzz_sources.py --what shards --seconds 600     # ranks of FSDP and distributed checkpoints

Prints how many inputs were tried and how many of them were read; exits with a traceback at the first that fails
otherwise, and leaves that input in fuzz-failed.bin.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
import zipfile
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import parts
from safetensors.numpy import save

from agentmerge.errors import BASE, Role, SourceError
from agentmerge.files.positional import ShortRead
from agentmerge.files.torch_header import torch_header
from agentmerge.sources.adapter_config import adapter_config
from agentmerge.sources.opening import opened
from agentmerge.tensors import Block

if TYPE_CHECKING:
    from collections.abc import Callable

OPCODES = b"\x80\x95N\x88\x89)JKMGX\x8c\x8dUqrhj.(}]c\x93\x94\x8aQRbsuaet\x85\x86\x87"
CONFIG = {
    "peft_type": "LORA",
    "r": 8,
    "lora_alpha": 16,
    "use_rslora": False,
    "rank_pattern": {"q_proj": 4, r"layers\.1\..*": 2},
    "alpha_pattern": {"v_proj": 3.5},
    "init_lora_weights": True,
    "base_model_name_or_path": "org/model",
}


def state_dict() -> bytes:
    """The pickle of a state dict of two tensors that share a storage, written opcode by opcode."""
    storage = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x18tQ"
    empty = b"ccollections\nOrderedDict\n)R"
    first = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00K\x04K\x06\x86K\x06K\x01\x86\x89" + empty + b"tR"
    turned = first.replace(b"K\x04K\x06\x86K\x06K\x01\x86", b"K\x06K\x04\x86K\x01K\x06\x86")
    second = b"ctorch._utils\n_rebuild_parameter\n" + turned + b"\x88" + empty + b"\x87R"
    return b"\x80\x02" + empty + b"(X\x01\0\0\0a" + first + b"X\x01\0\0\0b" + second + b"u."


def archive(raw: bytes) -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("m/data.pkl", raw)
        file.writestr("m/byteorder", b"little")
        file.writestr("m/data/0", bytes(96))
    return out.getvalue()


def damaged(content: bytes, rng: random.Random, words: list[bytes]) -> bytes:
    """A copy with some bytes cut out, put in, doubled or overwritten."""
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at, to = rng.randrange(len(found) + 1), rng.randrange(len(found) + 1)
        put = rng.choice((b"", rng.choice(words), rng.randbytes(rng.randint(1, 4)), bytes(found[at : at + 12])))
        found[to : to + rng.choice((0, 0, 1, 4))] = put
    return bytes(found)


def pickles(rng: random.Random) -> Callable[[], bytes]:
    raw = state_dict()
    words = [bytes([code]) for code in OPCODES] + [
        b"cos\nsystem\n",
        b"\xff\xff\xff\xff",
        b"K\xff",
        b"J\xff\xff\xff\x7f",
    ]

    def one() -> bytes:
        if rng.random() < 0.3:
            return damaged(archive(raw), rng, words)
        return archive(damaged(raw, rng, words))

    return one


def configs(rng: random.Random) -> Callable[[], bytes]:
    raw = json.dumps(CONFIG).encode()
    words = [
        b"null",
        b"true",
        b"0",
        b"-1",
        b"1e400",
        b"NaN",
        b"[",
        b"]",
        b"{}",
        b'""',
        b".*",
        b"(a+)+",
        b"\\",
        b'"r": 0',
    ]
    return lambda: damaged(raw, rng, words)


def deltas(rng: random.Random) -> Callable[[], bytes]:
    tensors = {
        "w.indices": np.array([0, 3, 7, 23], np.int32),
        "w.values": np.ones(4, np.float32),
        "v.indices": np.array([2], np.int64),
        "v.values": np.ones(1, np.float16),
    }
    raw = save(tensors, {"sparse": "true", "model_version": "1"})
    words = [b'"I32"', b'"I64"', b'"sparse"', b'"-1"', b"null", b"[]", b"w.indices", b"w.values", b"\xff\xff\xff\xff"]

    def one() -> bytes:
        found = damaged(raw, rng, words)
        if rng.random() < 0.7:  # with a length that fits, so that more than the length is tried
            header = found[8:].rpartition(b"}")[0] + b"}"
            found = len(header).to_bytes(8, "little") + header + raw[-(16 + 16 + 8 + 2) :]
        return found

    return one


def shards(rng: random.Random) -> Callable[[], bytes]:
    """The file of a rank, in whole or its pickle, or .metadata."""
    ranks, length = [parts.rank_file(old=old) for old in (False, True)], len(parts.chunk())
    metadata = parts.metadata(length)
    words = [bytes([code]) for code in (*OPCODES, 0x81)] + [b"cos\nsystem\n", b"K\xff", b"J\xff\xff\xff\x7f", b"h\x04",
             b"\x85R", b"X\x01\0\0\0a", b"__1_0.distcp", length.to_bytes(2, "little")]  # fmt: skip

    def one() -> bytes:
        if rng.random() < 0.5:
            return damaged(metadata, rng, words)
        raw = rng.choice(ranks)
        return damaged(parts.rank_archive(raw), rng, words) if rng.random() < 0.2 else parts.rank_archive(
            damaged(raw, rng, words)
        )  # fmt: skip

    return one


class Shards:
    """A rank's file beside another one, or .metadata beside its chunks, opened and read whole."""

    def __init__(self, folder: Path) -> None:
        self._ranks, self._chunks = folder / "ranks", folder / "chunks"
        for path in (self._ranks, self._chunks):
            path.mkdir()
        (self._ranks / "model_world_size_2_rank_1.pt").write_bytes(parts.rank_archive(parts.rank_file(old=False)))
        (self._chunks / "__0_0.distcp").write_bytes(parts.chunk() * 2)

    def read(self, content: bytes) -> None:
        """Raise SourceError, or read every tensor."""
        ranks = b"data.pkl" in content
        path = self._ranks / "model_world_size_2_rank_0.pt" if ranks else self._chunks / ".metadata"
        path.write_bytes(content)
        with opened(None, str(path.parent)) as source:
            for spec in source.specs.values():
                source.weights.read(Block(spec, 0, spec.elements))


class Delta:
    """A delta's file over a base, opened and read whole."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._base = folder, folder / "base.safetensors"
        self._base.write_bytes(save({"w": np.zeros((4, 6), np.float32), "v": np.zeros(5, np.float16)}))

    def read(self, content: bytes) -> None:
        """Raise SourceError, or read every tensor."""
        path = self._folder / "delta.safetensors"
        path.write_bytes(content)
        with opened(BASE, str(self._base)) as base, opened(Role("a"), str(path), base) as source:
            for spec in source.specs.values():
                source.weights.read(Block(spec, 0, spec.elements))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--what", choices=("pickle", "adapter", "delta", "shards"), default="pickle")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    make = {"pickle": pickles, "adapter": configs, "delta": deltas, "shards": shards}[options.what](rng)
    folder = Path(tempfile.mkdtemp())
    readers = {"delta": Delta, "shards": Shards}
    reader = readers[options.what](folder) if options.what in readers else None
    fd, path = os.memfd_create("fuzz"), Path("fuzz")
    tried = read = 0
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        content = make()
        tried += 1
        try:
            if options.what == "pickle":
                os.ftruncate(fd, 0)
                os.pwrite(fd, content, 0)
                torch_header(fd, path)
            elif reader is not None:
                reader.read(content)
            else:
                config = adapter_config(content, path)
                config.scale_of("model.layers.1.self_attn.q_proj")
            read += 1
        except (SourceError, ShortRead):
            continue
        except BaseException:
            Path("fuzz-failed.bin").write_bytes(content)
            raise
    print(f"{options.what}: {tried:,} inputs tried, {read:,} read, every other one refused by our own error")


if __name__ == "__main__":
    main()
