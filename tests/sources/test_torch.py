"""Files of torch.save read without torch, and without running anything of them."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge.errors import SourceError
from agentmerge.files.positional import ShortRead
from agentmerge.files.torch_archive import LEGACY
from agentmerge.files.torch_header import torch_header
from agentmerge.sources.opening import opened
from agentmerge.tensors import DTYPES, Block
from agentmerge.testing import assert_source_contract, random_base, read_checkpoint
from tests.files.torch_files import Global, Reduced, Storage, Tensor, archive, pickled, put_torch

if TYPE_CHECKING:
    from agentmerge.tensors import Array

FLAT = np.arange(24, dtype=np.float32)


def refusal(path: Path) -> str:
    with pytest.raises(SourceError) as caught, opened(None, str(path)):
        pass
    return str(caught.value)


def put(path: Path, value: Any, storages: dict[str, bytes] | None = None, **how: Any) -> Path:
    path.write_bytes(archive(pickled(value), {"0": FLAT.tobytes()} if storages is None else storages, **how))
    return path


def test_every_dtype_reads_as_it_was_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kinds = [dtype for dtype in DTYPES if not dtype.startswith(("F8", "U16", "U32", "U64"))]
    arrays: dict[str, Array] = {kind: rng.integers(0, 2, (3, 5)).astype(DTYPES[kind]) for kind in kinds}
    arrays |= {"scalar": np.array(3.5, np.float32), "empty": np.zeros((0, 4), np.float32)}
    with opened(None, str(put_torch(tmp_path / "pytorch_model.bin", arrays))) as source:
        assert_source_contract(source)
    for path in (tmp_path, tmp_path / "pytorch_model.bin"):
        found = read_checkpoint(path)
        assert {name: array.tobytes() for name, array in found.items()} == {n: a.tobytes() for n, a in arrays.items()}
        assert {name: array.shape for name, array in found.items()} == {name: a.shape for name, a in arrays.items()}


def test_shared_storages_parameters_and_strides(tmp_path: Path) -> None:
    shared = Storage("0", FLAT)
    tensors = {
        "whole": Tensor(shared, 0, (4, 6), (6, 1)),
        "again": Tensor(shared, 0, (4, 6), (6, 1), parameter=True),
        "row": Tensor(shared, 6, (6,), (1,)),
        "turned": Tensor(shared, 0, (6, 4), (1, 6)),
        "every other": Tensor(shared, 1, (2, 3), (12, 2)),
        "repeated": Tensor(shared, 5, (3, 2), (0, 1)),
        "one column": Tensor(shared, 2, (4, 1), (6, 99)),
    }
    put_torch(tmp_path / "model.bin", tensors)
    expected = {
        name: np.lib.stride_tricks.as_strided(FLAT[t.offset :], t.shape, [4 * stride for stride in t.strides])
        for name, t in tensors.items()
    }
    with opened(None, str(tmp_path)) as source:
        assert_source_contract(source)
        for name, array in expected.items():
            spec = source.specs[name]
            assert source.weights.read(Block(spec, 0, spec.elements)).tobytes() == array.tobytes(), name


def test_shards_are_found_by_their_index(tmp_path: Path) -> None:
    base = random_base(0)
    first, second = dict(list(base.items())[:2]), dict(list(base.items())[2:])
    one, two = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"
    put_torch(tmp_path / one, first)
    assert "expected all of its shards" in refusal(tmp_path)
    put_torch(tmp_path / two, second)
    assert "no pytorch_model.bin.index.json, expected one checkpoint" in refusal(tmp_path)
    owners = {**dict.fromkeys(first, one), **dict.fromkeys(second, two)}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": owners}))
    (tmp_path / "optimizer.pt").write_bytes(b"")
    with opened(None, str(tmp_path)) as source:
        assert_source_contract(source)
    assert {name: array.tobytes() for name, array in read_checkpoint(tmp_path).items()} == {
        name: array.tobytes() for name, array in base.items()
    }
    index.write_text(json.dumps({"weight_map": {**owners, "absent": one}}))
    assert f"{index}: tensor 'absent' should be in {one}" in refusal(tmp_path)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("target", ["os.system", "builtins.eval", "builtins.exec"])
def test_a_pickle_that_tries_to_run_code_is_refused_and_nothing_runs(
    tmp_path: Path, target: str, protocol: int
) -> None:
    import builtins
    import pickle

    canary = tmp_path / "canary"
    function = os.system if target == "os.system" else getattr(builtins, target.rpartition(".")[2])
    text = f"touch {canary}" if target == "os.system" else f"__import__('pathlib').Path({str(canary)!r}).touch()"

    class Hostile:
        def __reduce__(self) -> Any:
            return function, (text,)

    raw = pickle.dumps({"weight": Hostile()}, protocol)
    pickle.loads(raw)  # it is no empty threat
    assert canary.exists()
    canary.unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(archive(raw, {}))
    message = refusal(tmp_path)
    assert "pytorch_model.bin: its pickle is refused: it" in message
    assert "Nothing of it was run" in message
    assert not canary.exists()


TENSOR = Global("torch._utils", "_rebuild_tensor_v2")
STORAGE = Storage("0", FLAT)
HOSTILE: dict[str, tuple[Any, str]] = {
    "beyond the storage": ({"a": Tensor(STORAGE, 1, (24,), (1,))}, "takes elements up to 25 of a storage of 24"),
    "negative": ({"a": Tensor(STORAGE, 23, (2,), (-1,))}, "whole numbers from 0 on"),
    "more strides": ({"a": Tensor(STORAGE, 0, (2,), (1, 1))}, "whole numbers from 0 on"),
    "a truth value": ({"a": Tensor(STORAGE, 0, (True,), (1,))}, "whole numbers from 0 on"),
    "enormous": ({"a": Tensor(STORAGE, 0, (2**62, 4), (0, 0))}, "under 2^63 elements"),
    "expanded": ({"a": Tensor(STORAGE, 0, (2**40,), (0,))}, "call .contiguous()"),
    "many dimensions": ({"a": Tensor(STORAGE, 0, (1,) * 33, (1,) * 33)}, "whole numbers from 0 on"),
    "another storage": ({"a": Tensor(Storage("7", FLAT), 0, (1,), (1,))}, "storage '7', which the file does not hold"),
    "another size": ({"a": Tensor(Storage("0", FLAT, elements=25), 0, (1,), (1,))}, "of 96 bytes, expected 100"),
    "another kind": ({"a": Tensor(Storage("0", FLAT, kind="QInt8Storage"), 0, (1,), (1,))}, "lies in a 'QInt8Storage'"),
    "another call": ({"a": Reduced(Global("torch._utils", "_rebuild_sparse_tensor"), ())}, "_rebuild_sparse_tensor"),
    "a short record": ({"a": Reduced(TENSOR, (STORAGE,))}, "a record of 1 parts"),
    "no storage": ({"a": Reduced(TENSOR, (1, 0, (1,), (1,)))}, "has no storage"),
    "a number": ({"epoch": 3}, "its entry 'epoch' is 3, expected tensors by name"),
    "nested": ({"model": {"a": Tensor(STORAGE, 0, (1,), (1,))}}, "its entry 'model' is a mapping"),
    "a list": ([1, 2], "a pickle of a list"),
    "a number of a hundred bits": ({"a": 1 << 100}, "a number of more than 64 bits"),
    "half a surrogate": ({"\ud800": Tensor(STORAGE, 0, (1,), (1,))}, "refused: broken: 'utf-8'"),
    "the header's own name": ({"__metadata__": Tensor(STORAGE, 0, (1,), (1,))}, "expected another name"),
    "a tuple as key": ({(1, 2): 3}, "a key that is neither text nor number"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_record_is_refused_with_file_and_tensor(tmp_path: Path, what: str) -> None:
    value, message = HOSTILE[what]
    text = refusal(put(tmp_path / "model.pt", OrderedDict(value) if isinstance(value, dict) else value))
    assert text.startswith(f"{tmp_path / 'model.pt'}: ")
    assert message in text


def test_other_files_are_refused_as_what_they_are(tmp_path: Path) -> None:
    good = {"a": Tensor(STORAGE, 0, (24,), (1,))}
    assert "member 'archive/data.pkl' is compressed" in refusal(put(tmp_path / "a.bin", good, compress=True))
    assert "numbers of byte order b'big'" in refusal(put(tmp_path / "b.bin", good, order=b"big"))
    for content, message in {
        LEGACY + b"rest": "from before torch 1.6",
        b"\x80\x04}.": "a bare pickle",
        b"": "an empty file",
        b"version https://git-lfs.github.com/spec/v1\n": "Git LFS pointer",
        b"hello": "a text file",
        b"PK\x03\x04hello": "a broken zip archive",
        archive(b"\x80\x02}q", {}): "its pickle is refused: broken",
    }.items():
        (tmp_path / "c.bin").write_bytes(content)
        assert message in refusal(tmp_path / "c.bin")
    whole = put(tmp_path / "d.bin", good).read_bytes()
    (tmp_path / "d.bin").write_bytes(whole[:-40])
    assert "a broken zip archive" in refusal(tmp_path / "d.bin")


def test_thousands_of_damaged_files_are_read_or_refused() -> None:
    tensors = {"a": Tensor(STORAGE, 0, (4, 6), (6, 1)), "b": Tensor(STORAGE, 0, (6, 4), (1, 6), parameter=True)}
    raw = pickled(OrderedDict(tensors))
    rng = random.Random(0)
    read = 0
    with tempfile.TemporaryFile() as file:
        for i in range(4_000):
            content = bytearray(raw if i % 2 else archive(raw, {"0": FLAT.tobytes()}))
            for _ in range(rng.randint(1, 4)):
                at = rng.randrange(len(content))
                content[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
            whole = archive(bytes(content), {"0": FLAT.tobytes()}) if i % 2 else bytes(content)
            os.ftruncate(file.fileno(), 0)
            os.pwrite(file.fileno(), whole, 0)
            try:
                torch_header(file.fileno(), Path("fuzz.bin"))
            except (SourceError, ShortRead):
                continue
            read += 1
    assert 0 < read < 4_000
