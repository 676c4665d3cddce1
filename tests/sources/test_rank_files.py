"""The files of FSDP's ranks, read without torch and without running anything of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge.errors import BASE, Role, SourceError
from agentmerge.sources.opening import opened
from agentmerge.tensors import Block
from agentmerge.testing import assert_source_contract, write_checkpoint
from tests.files.parts import COPIES, PLACES, SPEC, Archive, chunk, put_ranks, put_sharded, rows
from tests.files.torch_files import Global, Made, Reduced

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentmerge.tensors import Array

RANDOM = np.random.default_rng(0)
TENSORS: dict[str, Array] = {
    "up.weight": RANDOM.normal(size=(10, 6)).astype(np.float32),
    "norm.weight": RANDOM.normal(size=5).astype(np.float32),
    "narrow.weight": RANDOM.normal(size=(1, 3)).astype(np.float16),
    "deep.weight": RANDOM.normal(size=(3, 4, 5)).astype(np.float32),
}
MATRICES = {name: array for name, array in TENSORS.items() if array.ndim > 1}


def read(folder: Path, base: Path | None = None) -> dict[str, Array]:
    """Every tensor, once the source has kept its contract."""
    if base is not None:
        with opened(BASE, str(base)) as below, opened(Role("code"), str(folder), below, "exact") as source:
            assert_source_contract(source)
            return {n: source.weights.read(Block(s, 0, s.elements)).reshape(s.shape) for n, s in source.specs.items()}
    with opened(None, str(folder)) as source:
        assert_source_contract(source)
        return {n: source.weights.read(Block(s, 0, s.elements)).reshape(s.shape) for n, s in source.specs.items()}


def same(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, name)


def refusal(folder: Path) -> str:
    with pytest.raises(SourceError) as caught, opened(None, str(folder)):
        pass
    return str(caught.value)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    ("mesh", "placements", "tensors"),
    [
        (np.arange(1), (rows(0),), TENSORS),
        (np.arange(2), (rows(0),), TENSORS),
        (np.arange(4), (rows(0),), TENSORS),  # more ranks than rows, and rows that do not divide
        (np.arange(3)[::-1], (rows(0),), TENSORS),  # ranks in another order on the mesh
        (np.arange(4), (rows(1),), MATRICES),
        (np.arange(4), (rows(-1),), TENSORS),
        (np.arange(2), (COPIES,), TENSORS),
        (np.arange(4).reshape(2, 2), (COPIES, rows(0)), TENSORS),  # HSDP
        (np.arange(4).reshape(2, 2), (rows(0), rows(0)), TENSORS),
        (np.arange(6).reshape(2, 3), (rows(1), rows(0)), MATRICES),
    ],
)
def test_the_parts_of_every_rank_are_the_whole(tmp_path: Path, mesh, placements, tensors, old: bool) -> None:
    same(read(put_ranks(tmp_path / "a", tensors, placements, mesh, old=old)), tensors)


def test_sharded_tensors_and_ranks_that_hold_none_of_one(tmp_path: Path) -> None:
    same(read(put_sharded(tmp_path / "a", TENSORS, 4)), TENSORS)


def test_the_files_beside_the_parts_are_none_of_the_model(tmp_path: Path) -> None:
    folder = put_ranks(tmp_path / "a", TENSORS)
    for name in ("optim_world_size_2_rank_0.pt", "extra_state_world_size_2_rank_0.pt", "data.pt"):
        (folder / name).write_bytes(b"\x80\x02broken")
    (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": 2}))
    same(read(folder), TENSORS)


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    folder = put_ranks(tmp_path / "a", TENSORS, mesh=np.arange(4))
    for rank in (1, 3):
        (folder / f"model_world_size_4_rank_{rank}.pt").unlink()
    message = refusal(folder)
    assert f"{folder}: the files of ranks 1, 3 of 4 are not there, expected every rank. Copy the files" in message


def test_ranks_that_hold_copies_alone_may_lack(tmp_path: Path) -> None:
    folder = put_ranks(tmp_path / "a", TENSORS, (COPIES, rows(0)), np.arange(4).reshape(2, 2))
    (folder / "model_world_size_4_rank_2.pt").unlink()
    same(read(folder), TENSORS)
    with opened(None, str(folder)) as source:
        assert any("ranks 2 of 4 are not there; they hold copies" in note.found for note in source.notes)
    (folder / "model_world_size_4_rank_0.pt").unlink()
    assert "ranks 0, 2 of 4 are not there" in refusal(folder)


def test_the_files_of_two_runs_are_told_apart(tmp_path: Path) -> None:
    folder = put_ranks(put_ranks(tmp_path / "a", TENSORS), TENSORS, mesh=np.arange(4))
    assert "the files of runs of 2 and of 4 processes, expected those of one" in refusal(folder)
    (folder / "fsdp_config.json").write_text(json.dumps({"world_size": 4}))
    assert "processes; fsdp_config.json says 4" in refusal(folder)


@pytest.mark.parametrize("name", ["model_world_size_2_rank_2.pt", "model_world_size_2_rank_01.pt"])
def test_a_rank_beyond_the_world_or_there_twice(tmp_path: Path, name: str) -> None:
    folder = put_ranks(tmp_path / "a", TENSORS)
    (folder / name).write_bytes((folder / "model_world_size_2_rank_1.pt").read_bytes())
    assert "expected each of the ranks 0 to 1 once" in refusal(folder)


def test_fsdp_config_that_speaks_of_another_run(tmp_path: Path) -> None:
    folder = put_ranks(tmp_path / "a", TENSORS)
    (folder / "fsdp_config.json").write_text(json.dumps({"world_size": 8}))
    assert "a run of 2 processes; fsdp_config.json says 8" in refusal(folder)


def test_the_file_of_one_rank_under_the_name_of_another(tmp_path: Path) -> None:
    folder = put_ranks(tmp_path / "a", TENSORS)
    (folder / "model_world_size_2_rank_1.pt").write_bytes((folder / "model_world_size_2_rank_0.pt").read_bytes())
    message = refusal(folder)
    assert "expected [5, 6]" in message or "expected [2]" in message


def put_one(folder: Path, rank: int, world: int, name: str, array: Array, shape: tuple[int, ...], **spec: Any) -> None:
    put = Archive()
    mesh = put.mesh(spec.pop("mesh", np.arange(world)))
    value = put.dtensor(array, shape, spec.pop("placements", (rows(0),)), mesh, **spec)
    folder.mkdir(exist_ok=True)
    (folder / f"model_world_size_{world}_rank_{rank}.pt").write_bytes(put.bytes({name: value}))


HALF = np.ones((2, 3), np.float32)
STRIDED = Made(Global(PLACES, "_StridedShard"), (), {"dim": 0, "split_factor": 2})
ORDER = Made(Global(SPEC, "ShardOrderEntry"), (0, (1, 0)))
SPOILED: dict[str, tuple[dict[str, Any], str]] = {
    "another shape of the part": ({"array": np.ones((3, 3), np.float32)}, "has a part of shape [3, 3] in rank 1"),
    "another dtype": ({"array": HALF.astype(np.float16)}, "has several dtypes in the files of the ranks: F16, F32"),
    "another whole": ({"array": HALF, "shape": (4, 4)}, "in rank 1, expected [2, 4]"),
    "another name": ({"name": "v"}, "tensor 'w' is not in the files of ranks 1, expected it in every file"),
    "a mesh without it": ({"mesh": np.array([0, 2])}, "lies on a mesh of the ranks [0, 2], expected 1 among them"),
    "a mesh with it twice": ({"mesh": np.array([1, 1])}, "expected 1 among them, once"),
    "sums": ({"placements": (Made(Global(PLACES, "Partial"), (), {"reduce_op": "sum"}),)}, "is placed as Partial"),
    "strides": ({"placements": (STRIDED,)}, "is placed as _StridedShard, expected Shard or Replicate. Save the"),
    "another order": ({"shard_order": (ORDER,)}, "is divided in the order (1, 0), expected that of the mesh"),
    "no such dimension": ({"placements": (rows(2),)}, "is divided along dimension 2, expected one of its 2"),
    "two placements": ({"placements": (rows(0), rows(0))}, "has 2 placements on a mesh of 1 dimensions"),
    "a placement that is a text": ({"placements": ("Shard",)}, "is placed as 'Shard'"),
    "no shape": ({"tensor_meta": None}, "does not say its shape, mesh and placements"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_ranks_that_contradict_each_other_are_one_error(tmp_path: Path, case: str) -> None:
    how, message = SPOILED[case]
    put_one(tmp_path / "a", 0, 2, "w", HALF, (4, 3))
    put_one(tmp_path / "a", 1, 2, **{"name": "w", "array": HALF, "shape": (4, 3), **how})
    assert message in refusal(tmp_path / "a")


@pytest.mark.parametrize(
    ("axis", "places"),
    [
        (((2,), (1,)), [0, 1, 0, 1, 0, 1, 0, 1]),  # the last dimension of [4, 2]
        (((2,), (4,)), [0, 0, 0, 0, 1, 1, 1, 1]),  # the first of [2, 4]
        (((2, 2), (4, 1)), [0, 1, 0, 1, 2, 3, 2, 3]),  # the first and the last of [2, 2, 2], made one
    ],
)
def test_a_mesh_that_is_a_part_of_a_larger_one(tmp_path: Path, axis: Any, places: list[int]) -> None:
    whole, count = TENSORS["up.weight"], max(places) + 1
    for rank, place in enumerate(places):
        put = Archive()
        mesh = put.layout(np.arange(8, dtype=np.int32), [axis])
        value = put.dtensor(whole[chunk(len(whole), count, place)], whole.shape, (rows(0),), mesh)
        (tmp_path / f"model_world_size_8_rank_{rank}.pt").write_bytes(put.bytes({"w": value}))
    same(read(tmp_path), {"w": whole})


@pytest.mark.parametrize("axis", [((2,), (3,)), ((3,), (1,)), ((0,), (1,)), ((2, 2), (1, 1)), ((2,), (0,))])
def test_a_mesh_of_steps_that_are_no_rows_and_columns_is_refused(tmp_path: Path, axis: Any) -> None:
    put = Archive()
    mesh = put.layout(np.arange(4, dtype=np.int32), [axis])
    value = put.dtensor(HALF, (4, 3), (rows(0),), mesh)
    (tmp_path / "model_world_size_1_rank_0.pt").write_bytes(put.bytes({"w": value}))
    assert "lies on a mesh of the steps" in refusal(tmp_path)


# tensors that do not say what they are a part of


def test_copies_beside_divided_tensors_are_one_tensor_and_must_be_equal(tmp_path: Path) -> None:
    tensors = {**TENSORS, "position": np.arange(7, dtype=np.int64), "scalar": np.array(2.5, np.float32)}
    folder = put_ranks(tmp_path / "a", tensors, plain=("position", "scalar"))
    same(read(folder), tensors)
    other = put_ranks(tmp_path / "b", {**tensors, "position": np.arange(7)[::-1].copy()}, plain=("position", "scalar"))
    file = "model_world_size_2_rank_1.pt"
    (folder / file).write_bytes((other / file).read_bytes())
    assert "tensor 'position' was not divided, and differs between the ranks" in refusal(folder)


def test_plain_tensors_of_one_process_are_whole(tmp_path: Path) -> None:
    same(read(put_ranks(tmp_path / "a", TENSORS, mesh=np.arange(1), plain=list(TENSORS))), TENSORS)


@pytest.mark.parametrize("kind", [Global("torch", "Tensor"), Global("torch.nn.parameter", "Parameter")])
def test_a_tensor_with_attributes_is_a_tensor(tmp_path: Path, kind: Global) -> None:
    """FSDP of one process leaves `_fsdp_flattened` on what it saves."""
    put = Archive()
    held = put.tensor(HALF)
    arguments = (held.storage, 0, HALF.shape, (3, 1), False, {})
    made = (Global("torch._utils", "_rebuild_tensor_v2"), kind, arguments, {"_fsdp_flattened": True})
    value = Reduced(Global("torch._tensor", "_rebuild_from_type_v2"), made)
    (tmp_path / "model_world_size_1_rank_0.pt").write_bytes(put.bytes({"w": value}))
    same(read(tmp_path), {"w": HALF})
    (tmp_path / "model_world_size_1_rank_0.pt").rename(tmp_path / "pytorch_model.bin")
    same(read(tmp_path), {"w": HALF})


def test_plain_tensors_alone_are_told_by_the_shapes_of_the_base(tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", {f"model.{name}": array for name, array in TENSORS.items()}, config={})
    copies = put_ranks(tmp_path / "copies", TENSORS, plain=list(TENSORS))
    same(read(copies, base), TENSORS)
    message = refusal(copies)
    assert "does not say which part of it a rank holds; the ranks have [10, 6], [10, 6]" in message
    assert "Give it as an agent, with its base" in message
    below = tmp_path / "below"
    for rank, part in enumerate((slice(0, 4), slice(4, None))):
        put_ranks(tmp_path / "one", {"up.weight": TENSORS["up.weight"][part]}, mesh=np.arange(1), plain=["up.weight"])
        below.mkdir(exist_ok=True)
        (tmp_path / "one" / "model_world_size_1_rank_0.pt").rename(below / f"model_world_size_2_rank_{rank}.pt")
    same(read(below, base), {"up.weight": TENSORS["up.weight"]})
    (below / "model_world_size_2_rank_1.pt").unlink()
    with (
        pytest.raises(SourceError, match="ranks 1 of 2 are not there"),
        opened(BASE, str(base)) as under,
        opened(Role("code"), str(below), under),
    ):
        pass


def test_what_modules_save_beside_their_tensors_is_left_out_by_name(tmp_path: Path) -> None:
    stream = Made(Global("_io", "BytesIO"), (), (Reduced(Global("_codecs", "encode"), ("x", "latin1")), 0, None))
    folder = put_ranks(tmp_path / "a", TENSORS, more={"layers.0._extra_state": stream})
    same(read(folder), TENSORS)
    with opened(None, str(folder)) as source:
        assert any("no weights, ignored: layers.0._extra_state" in note.found for note in source.notes)
    assert "its entry 'epoch' is 3" in refusal(put_ranks(tmp_path / "b", TENSORS, more={"epoch": 3}))
