"""Files of ranks that are hostile, cut, changed or many: refused with their cause, and nothing of them runs."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentmerge.errors import SourceError
from agentmerge.sources.opening import opened
from agentmerge.sources.together import read_blocks
from agentmerge.tensors import Block
from tests.files.parts import Archive, put_ranks, rows, size, subclass
from tests.files.torch_files import Global, Made, Reduced, archive
from tests.sources.test_rank_files import HALF, TENSORS, refusal


@pytest.mark.parametrize("place", ["entry", "state", "mesh", "argument", "getattr"])
def test_a_rank_whose_pickle_tries_to_run_code_is_refused_and_nothing_runs(tmp_path: Path, place: str) -> None:
    canary = tmp_path / "canary"
    call = Reduced(Global("os", "system"), (f"touch {canary}",))
    system = Reduced(Global("__builtin__", "getattr"), (Global("os", "system"), "__call__"))
    put = Archive()
    mesh = Made(Global("torch.distributed.device_mesh", "DeviceMesh"), (), call) if place == "mesh" else put.mesh(
        np.arange(1)
    )  # fmt: skip
    value = put.dtensor(HALF, (2, 3), (rows(0),), mesh)
    if place == "state":
        value = subclass(Global("torch.distributed.tensor", "DTensor"), (None, {"_local_tensor": call}))
    elif place in ("entry", "getattr"):
        value = call if place == "entry" else system
    elif place == "argument":
        value = Made(Global("torch.distributed.tensor._dtensor_spec", "TensorMeta"), (call,))
    (tmp_path / "a").mkdir()
    raw = put.bytes({"w": value})
    (tmp_path / "a" / "model_world_size_1_rank_0.pt").write_bytes(raw)
    message = refusal(tmp_path / "a")
    assert "its pickle is refused: it asks to call" in message
    assert "Nothing of it was run" in message
    assert not canary.exists()


def test_the_threat_is_none_that_is_made_up(tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Hostile:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {canary}",)

    for protocol in (0, 2, 4):
        raw = pickle.dumps({"w": Hostile()}, protocol)
        (tmp_path / "model_world_size_1_rank_0.pt").write_bytes(archive(raw, {}))
        assert "its pickle is refused: it" in refusal(tmp_path)
        assert not canary.exists()
    pickle.loads(raw)
    assert canary.exists()


@pytest.mark.parametrize("kind", [Global("os", "popen"), Global("subprocess", "Popen"), Global("torch.nn", "Linear")])
def test_objects_of_other_classes_are_refused_by_name(tmp_path: Path, kind: Global) -> None:
    (tmp_path / "model_world_size_1_rank_0.pt").write_bytes(Archive().bytes({"w": Made(kind, (), {"a": 1})}))
    assert f"it asks to make '{kind.module}.{kind.name}'" in refusal(tmp_path)


def test_records_that_hold_each_other_many_times_over_make_no_long_message(tmp_path: Path) -> None:
    laughs: Any = size((1,))
    for _ in range(60):
        laughs = size((laughs, laughs))
    put = Archive()
    value = put.dtensor(HALF, (2, 3), (laughs,), put.mesh(np.arange(1)))
    (tmp_path / "model_world_size_1_rank_0.pt").write_bytes(put.bytes({"w": value}))
    assert "is placed as torch.Size(...)" in refusal(tmp_path)


def test_a_file_that_was_cut_is_told(tmp_path: Path) -> None:
    folder = put_ranks(tmp_path / "a", TENSORS)
    path = folder / "model_world_size_2_rank_1.pt"
    raw = path.read_bytes()
    for part in (0, 10, len(raw) // 2, len(raw) - 30):
        path.write_bytes(raw[:part])
        assert str(path) in refusal(folder)


def test_many_ranks_need_few_open_files(tmp_path: Path) -> None:
    import resource

    ranks = 200
    tensors = {"norm.weight": np.arange(4096, dtype=np.float32), "up.weight": np.arange(9600.0).reshape(1200, 8)}
    folder = put_ranks(tmp_path / "a", tensors, mesh=np.arange(ranks))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 100
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (held + 40, before[1]))
        with opened(None, str(folder)) as source:
            for name, array in tensors.items():
                block = Block(source.specs[name], 0, array.size)
                out = np.empty(array.size, array.dtype)
                read_blocks([(source.weights, block)], [out], [(source.weights, block)])
                np.testing.assert_array_equal(out, array.reshape(-1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path) -> None:
    folder = put_ranks(tmp_path / "a", TENSORS)
    with opened(None, str(folder)) as source:
        (folder / "model_world_size_2_rank_1.pt").write_bytes(b"")
        spec = source.specs["up.weight"]
        source.weights.read(Block(spec, 0, 12))  # of the other rank
        with pytest.raises(SourceError, match=r"model_world_size_2_rank_1\.pt: changed while in use"):
            source.weights.read(Block(spec, 0, spec.elements))
