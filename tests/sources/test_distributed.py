"""Distributed checkpoints of torch, read without torch and without running anything of them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge.errors import SourceError
from agentmerge.sources.opening import opened
from agentmerge.tensors import DTYPES, Block
from tests.files.parts import MADE, put_distcp, put_ranks, size
from tests.files.torch_files import Global, Made, Reduced, archive, pickled
from tests.sources.test_rank_files import read, refusal, same

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agentmerge.tensors import Array

RANDOM = np.random.default_rng(0)
TENSORS: dict[str, Array] = {
    "up.weight": RANDOM.normal(size=(9, 6)).astype(np.float32),
    "norm.weight": RANDOM.normal(size=5).astype(DTYPES["BF16"]),
    "deep.weight": RANDOM.normal(size=(3, 2, 5)).astype(np.float16),
    "scalar": np.array(1.5, np.float32),
}


def nested(*keys: str | int, name: str) -> tuple[str, tuple[str | int, ...]]:
    """A flat key, and its path."""
    return ".".join(map(str, (*keys, name))), (*keys, name)


@pytest.mark.parametrize("cuts", [1, 2, 3])
@pytest.mark.parametrize("files", [1, 2, 5])
def test_the_chunks_of_every_file_are_the_whole(tmp_path: Path, cuts: int, files: int) -> None:
    same(read(put_distcp(tmp_path / "a", TENSORS, cuts=cuts, files=files)), TENSORS)


def test_members_of_enums_may_be_saved_by_name(tmp_path: Path) -> None:
    same(read(put_distcp(tmp_path / "a", TENSORS, by_name=True)), TENSORS)


@pytest.mark.parametrize(
    ("keys", "around"), [(("model",), ()), (("app", "model"), ("app",)), ((), ()), (("state", "actor"), ("state",))]
)
def test_the_keys_around_the_model_and_its_training_are_left_out(tmp_path: Path, keys, around) -> None:
    moments = {"up.weight.exp_avg": np.ones((9, 6), np.float32), "step": np.array(3.0, np.float32)}
    others = {
        "optim": moments,
        "lr_scheduler": {"last": np.ones(1, np.float32)},
        "rng": {"cpu": np.ones(3, np.float32)},
    }
    paths = dict(nested(*keys, name=name) for name in TENSORS)
    tensors = dict(zip(paths, TENSORS.values(), strict=True))
    for key, mapping in others.items():
        for name, array in mapping.items():
            flat, path = nested(*around, key, name=name)
            paths[flat], tensors[flat] = path, array
    folder = put_distcp(tmp_path / "a", tensors, paths=paths)
    same(read(folder), TENSORS)
    with opened(None, str(folder)) as source:
        assert [str(note) for note in source.notes if note.severity == "warning"] == []
        assert any("left out: 4" in note.found for note in source.notes)


def test_a_flat_state_dict_is_the_model_but_for_the_optimizer(tmp_path: Path) -> None:
    tensors = {
        **{f"model.{name}": array for name, array in TENSORS.items()},
        "optim.up.exp_avg": np.ones(3, np.float32),
    }
    found = read(put_distcp(tmp_path / "a", tensors))
    same(found, {name: array for name, array in tensors.items() if name.startswith("model.")})


def test_tensors_beside_the_model_are_named(tmp_path: Path) -> None:
    paths = dict([nested("model", name="w"), nested("ema", name="w")])
    folder = put_distcp(tmp_path / "a", dict.fromkeys(paths, TENSORS["up.weight"]), paths=paths)
    same(read(folder), {"w": TENSORS["up.weight"]})
    with opened(None, str(folder)) as source:
        assert any("not part of the model, ignored: ema.w" in str(note) for note in source.notes)
    paths = dict([nested("student", name="w"), nested("teacher", name="w")])
    folder = put_distcp(tmp_path / "b", dict.fromkeys(paths, TENSORS["up.weight"]), paths=paths)
    assert ".metadata: tensors under student, teacher, expected those of one model" in refusal(folder)
    paths = dict([nested("optim", name="w")])
    folder = put_distcp(tmp_path / "c", dict.fromkeys(paths, TENSORS["up.weight"]), paths=paths)
    assert ".metadata: no tensors but those of training" in refusal(folder)


def test_missing_files_are_named_and_those_of_the_optimizer_are_not_needed(tmp_path: Path) -> None:
    folder = put_distcp(tmp_path / "a", TENSORS, files=4)
    for file in (1, 3):
        (folder / f"__{file}_0.distcp").unlink()
    message = refusal(folder)
    assert "2 of the 4 files with weights are not there: __1_0.distcp, __3_0.distcp" in message
    assert "Copy the files of every process" in message
    paths = dict([nested("model", name="w"), nested("optim", name="w")])
    tensors = dict.fromkeys(paths, TENSORS["up.weight"])
    folder = put_distcp(tmp_path / "b", tensors, paths=paths, cuts=1)
    (folder / "__1_0.distcp").unlink()
    same(read(folder), {"w": TENSORS["up.weight"]})


def test_files_without_what_says_where_their_tensors_lie(tmp_path: Path) -> None:
    folder = put_distcp(tmp_path / "a", TENSORS)
    (folder / ".metadata").unlink()
    assert "found .distcp files and no .metadata, expected .metadata. Copy the whole folder" in refusal(folder)


def field(record: Made, name: str, value: Any) -> None:
    record.state = {**record.state, name: value}


def first(places: dict[Any, Any]) -> Made:
    return next(place for index, place in places.items() if index.state["fqn"] == "up.weight")


def chunks(tensors: dict[str, Any]) -> list[Any]:
    found: list[Any] = tensors["up.weight"].state["chunks"]
    return found


def moved(tensors: dict[str, Any], places: dict[Any, Any], to: tuple[int, ...]) -> None:
    """The second chunk in another place, by all that is said of it."""
    field(chunks(tensors)[1], "offsets", size(to))
    field(list(places)[1], "offset", size(to))


SPOILED: dict[str, tuple[Callable[[dict[str, Any], dict[Any, Any]], Any], str]] = {
    "a chunk lacks": (lambda t, _: chunks(t).pop(), "has 42 of its 54 elements in its parts, expected all of them"),
    "chunks overlap": (lambda t, p: moved(t, p, (0, 2)), "has two parts that overlap, at [0, 0] and [0, 2]"),
    "a chunk beyond the end": (lambda t, p: moved(t, p, (0, 4)), "has a part of shape [5, 3] at [0, 4], expected insi"),
    "a chunk that no file holds": (
        lambda t, _: field(chunks(t)[1], "offsets", size((0, 2))),
        "has a chunk at [0, 2] that no file holds",
    ),
    "a chunk of another size": (
        lambda t, _: field(chunks(t)[1], "sizes", size((4, 3))),
        "has a chunk F32 [5, 3] at [0, 3], expected F32 [4, 3] as .metadata says",
    ),
    "another shape": (lambda t, _: field(t["up.weight"], "size", size((10, 6))), "has 54 of its 60 elements"),
    "the whole smaller": (lambda t, _: field(t["up.weight"], "size", size((9, 5))), "inside of it"),
    "another dtype": (
        lambda t, _: t.update({"up.weight": Made(t["up.weight"].kind, (), {**t["up.weight"].state, "properties": t[
            "norm.weight"].state["properties"]})}),
        "has a chunk F32 [5, 3] at [0, 0], expected BF16 [5, 3] as .metadata says",
    ),
    "beyond the file": (lambda _, p: field(first(p), "length", 1 << 40), "a place inside of it"),
    "before the file": (lambda _, p: field(first(p), "offset", -5), "a place inside of it"),
    "in the middle of another": (lambda _, p: field(first(p), "offset", 9), "no zip archive"),
    "outside of the folder": (lambda _, p: field(first(p), "relative_path", "../x.distcp"), "lies in '../x.distcp'"),
    "the folder above": (lambda _, p: field(first(p), "relative_path", ".."), "lies in '..'"),
    "no file": (lambda _, p: field(first(p), "relative_path", None), "lies in None"),
    "compressed": (lambda _, p: field(first(p), "transform_descriptors", ["zstd"]), "is stored by way of ['zstd']"),
    "two places": (
        lambda _, p: p.update({Made(Global(MADE, "MetadataIndex"), (), dict(next(iter(p)).state)): first(p)}),
        "two places for the chunk of 'up.weight' at [0, 0]",
    ),
    "a place of nothing": (lambda _, p: p.update({"x": first(p)}), "its storage_data has 'x'"),
    "negative": (lambda t, _: field(t["up.weight"], "size", size((-1, 6))), "whole numbers from 0 on"),
    "enormous": (lambda t, _: field(t["up.weight"], "size", size((2**62, 4))), "under 2^63 elements"),
    "no chunks": (lambda t, _: field(t["up.weight"], "chunks", None), "has no dtype or no chunks"),
}  # fmt: skip


@pytest.mark.parametrize("case", SPOILED)
def test_metadata_that_disagrees_is_one_error(tmp_path: Path, case: str) -> None:
    spoil, message = SPOILED[case]
    found = refusal(put_distcp(tmp_path / "a", TENSORS, edit=spoil, files=1))
    assert message in found
    assert "up.weight" in found or case in ("in the middle of another", "a place of nothing")


def test_a_wrong_file_under_a_right_name_is_told(tmp_path: Path) -> None:
    folder = put_distcp(tmp_path / "a", TENSORS, files=2)
    (folder / "__0_0.distcp").write_bytes((folder / "__1_0.distcp").read_bytes())
    assert "__0_0.distcp" in refusal(folder)


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_a_file_that_was_cut_is_told(tmp_path: Path, name: str) -> None:
    folder = put_distcp(tmp_path / "a", TENSORS)
    raw = (folder / name).read_bytes()
    for part in (0, 10, len(raw) // 2, len(raw) - 30):
        (folder / name).write_bytes(raw[:part])
        assert name in refusal(folder) or ".metadata" in refusal(folder)


def test_a_changed_metadata_is_noticed(tmp_path: Path) -> None:
    folder = put_distcp(tmp_path / "a", TENSORS)
    with opened(None, str(folder)) as source:
        (folder / ".metadata").write_bytes(b"other")
        with pytest.raises(SourceError, match=r"\.metadata: changed while in use"):
            source.identity.restat()


@pytest.mark.parametrize("place", ["metadata", "storage_meta", "planner_data", "chunk"])
def test_a_checkpoint_that_tries_to_run_code_is_refused_and_nothing_runs(tmp_path: Path, place: str) -> None:
    canary, folder = tmp_path / "canary", tmp_path / "a"
    call = Reduced(Global("os", "system"), (f"touch {canary}",))
    raw = archive(pickled(call), {})

    def lies(_: Any, places: dict[Any, Any]) -> None:
        for info in places.values():
            info.state |= {"offset": 0, "length": len(raw)}

    put_distcp(folder, TENSORS, metadata={place: call} if place in ("storage_meta", "planner_data") else {},
               edit=lies if place == "chunk" else None, files=1)  # fmt: skip
    if place == "metadata":
        (folder / ".metadata").write_bytes(pickled(call, 4))
    if place == "chunk":
        (folder / "__0_0.distcp").write_bytes(raw + bytes(1 << 16))
    message = refusal(folder)
    assert "its pickle is refused: it asks to call 'os.system'" in message
    assert "Nothing of it was run" in message
    assert not canary.exists()


def test_hundreds_of_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    tensors = {"w": np.arange(24, dtype=np.float32).reshape(4, 6)}
    paths = [
        put_ranks(tmp_path / "ranks", tensors) / "model_world_size_2_rank_1.pt",
        put_distcp(tmp_path / "chunks", tensors) / ".metadata",
    ]
    rng, read = random.Random(0), 0
    for path in paths:
        whole = path.read_bytes()
        for _ in range(150):
            content = bytearray(whole)
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(len(content))
                content[at : at + rng.randint(0, 3)] = rng.randbytes(rng.randint(0, 3))
            path.write_bytes(content)
            try:
                with opened(None, str(path.parent)) as source:
                    for spec in source.specs.values():
                        source.weights.read(Block(spec, 0, spec.elements))
            except SourceError:
                continue
            read += 1
    assert 0 < read < 300


def test_a_block_reads_no_more_than_its_parts(tmp_path: Path) -> None:
    folder = put_distcp(tmp_path / "a", {"w": np.arange(96, dtype=np.float32).reshape(16, 6)}, files=2)
    with opened(None, str(folder)) as source:
        spec = source.specs["w"]
        block = Block(spec, 7, 23)
        np.testing.assert_array_equal(source.weights.read(block), np.arange(7, 23))
        assert sum(part.nbytes for part in source.weights.extents(block).parts) == 4 * block.elements


def test_the_checkpoints_that_megatron_writes_stay_refused(tmp_path: Path) -> None:
    folder = put_distcp(tmp_path / "a", TENSORS)
    (folder / "common.pt").write_bytes(b"")
    assert "as Megatron writes it" in refusal(folder)
