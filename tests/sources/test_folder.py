"""Checkpoints open as what they are, or say what is wrong with them. Hostile headers are in tests/attacks."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from agentmerge.errors import SourceError, SourceNotFoundError
from agentmerge.files.layout import INDEX
from agentmerge.sources.opening import opened
from agentmerge.sources.source import Extents, Folder
from agentmerge.tensors import Block, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from agentmerge.sources.source import Source
    from agentmerge.tensors import Array

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
RANDOM = np.random.default_rng(0)
EMBED = RANDOM.standard_normal((7, 3)).astype(ml_dtypes.bfloat16)
NORM = RANDOM.standard_normal(4097).astype(np.float32)
HEAD = RANDOM.standard_normal((5, 2)).astype(np.float16)


def save(path: Path, **arrays: Array) -> Path:
    save_file(arrays, path, {"format": "pt"})
    return path


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def sharded(folder: Path) -> Path:
    save(folder / TWO, norm=NORM, head=HEAD)
    save(folder / ONE, embed=EMBED)
    write_index(folder, {"embed": ONE, "head": TWO, "norm": TWO})
    return folder


def open_source(path: str | Path) -> AbstractContextManager[Source]:
    return opened(None, str(path))


def refused(path: str | Path) -> None:
    with open_source(path):
        raise AssertionError("it was opened")


@contextmanager
def refusal(*parts: str, error: type[Exception] = SourceError) -> Iterator[None]:
    with pytest.raises(error) as caught:
        yield
    for part in parts:
        assert part in str(caught.value)


def whole(source: Source, name: str) -> Array:
    spec = source.specs[name]
    return source.weights.read(Block(spec, 0, spec.elements)).reshape(spec.shape)


# what a checkpoint is


def test_a_folder_of_shards_reads_as_one_checkpoint(tmp_path: Path) -> None:
    with open_source(sharded(tmp_path)) as source:
        assert list(source.specs) == ["embed", "norm", "head"]
        assert source.specs["embed"] == TensorSpec("embed", "BF16", (7, 3))
        for name, array in {"embed": EMBED, "norm": NORM, "head": HEAD}.items():
            assert whole(source, name).dtype == array.dtype
            assert whole(source, name).tobytes() == array.tobytes()
        assert (source.text, source.folder) == (str(tmp_path), Folder(tmp_path, whole=True))
        assert [file.name for file in source.identity.files] == [ONE, TWO]
        assert source.metadata == {"format": "pt"}
        assert source.notes == ()


@pytest.mark.parametrize("name", ["model.safetensors", "agent.safetensors"])
def test_a_single_file_needs_no_index_and_can_be_named_itself(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / name, embed=EMBED)
    for written in (tmp_path, path, str(path)):
        with open_source(written) as source:
            assert whole(source, "embed").tobytes() == EMBED.tobytes()
            assert source.folder == Folder(tmp_path, whole=written == tmp_path)
            assert [file.name for file in source.identity.files] == [name]


def test_a_hub_snapshot_of_links_reads_like_files(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    save(tmp_path / "blobs" / "0123", embed=EMBED)
    (tmp_path / "snapshot" / "model.safetensors").symlink_to(Path("..") / "blobs" / "0123")
    with open_source(tmp_path / "snapshot") as source:
        assert whole(source, "embed").tobytes() == EMBED.tobytes()


def test_an_index_may_lead_to_the_single_file(tmp_path: Path) -> None:
    save(tmp_path / "model.safetensors", embed=EMBED)
    write_index(tmp_path, {"embed": "model.safetensors"})
    with open_source(tmp_path) as source:
        assert list(source.specs) == ["embed"]


def test_an_index_may_lead_into_a_folder_below(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    save(tmp_path / "weights" / "a.safetensors", embed=EMBED)
    write_index(tmp_path, {"embed": "./weights//a.safetensors"})
    with open_source(tmp_path) as source:
        assert [file.name for file in source.identity.files] == ["weights/a.safetensors"]


# blocks


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_source(sharded(tmp_path_factory.mktemp("shared"))) as opened:
        yield opened


@settings(deadline=None)  # a disk may be slow
@given(st.tuples(st.integers(0, 4097), st.integers(0, 4097)).map(sorted), st.booleans())
def test_any_block_is_that_part_of_the_tensor(source: Any, ends: list[int], given_out: bool) -> None:
    block = Block(source.specs["norm"], *ends)
    out = np.empty(block.elements, np.float32) if given_out else None
    values = source.weights.read(block, out)
    assert values.tobytes() == NORM[ends[0] : ends[1]].tobytes()
    assert out is None or values is out


def test_a_block_of_another_checkpoint_reads_in_the_dtype_that_is_stored_here(source: Any) -> None:
    values = source.weights.read(Block(TensorSpec("norm", "BF16", (100,)), 50, 60))
    assert values.dtype == np.float32
    assert np.array_equal(values, NORM[50:60])


@pytest.mark.parametrize("out", [np.empty(3, np.float16), np.empty(4, np.float32), np.empty((3, 1), np.float32)])
def test_a_buffer_that_does_not_fit_is_refused(source: Any, out: Array) -> None:
    with pytest.raises(ValueError, match=r"norm: out is .* expected float32 \(3,\)"):
        source.weights.read(Block(source.specs["norm"], 0, 3), out)


@pytest.mark.parametrize("ends", [(-1, 2), (3, 2), (0, 4098)])
def test_a_block_outside_its_tensor_is_refused(source: Any, ends: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"norm: elements .* of 4097"):
        source.weights.read(Block(source.specs["norm"], *ends))


def test_a_tensor_that_is_not_there_is_named_with_one_that_is(source: Any) -> None:
    with refusal("no tensor 'embet'", "Did you mean 'embed'?"):
        source.weights.read(Block(TensorSpec("embet", "BF16", (1,)), 0, 1))


def test_an_extent_is_where_the_blocks_bytes_lie(source: Any) -> None:
    extents = source.weights.extents(Block(source.specs["norm"], 100, 200))
    (extent,) = extents.parts
    assert extents.verbatim
    with extent.file.borrow() as fd:
        assert os.pread(fd, extent.nbytes, extent.offset) == NORM[100:200].tobytes()


def test_there_are_no_extents_of_what_is_not_there(source: Any) -> None:
    for block in (Block(TensorSpec("embet", "BF16", (1,)), 0, 1), Block(source.specs["norm"], 0, 4098)):
        assert source.weights.extents(block) == Extents((), verbatim=False)


def test_a_borrowed_file_stays_open_when_the_source_closes(tmp_path: Path) -> None:
    with open_source(sharded(tmp_path)) as source:
        (extent,) = source.weights.extents(Block(source.specs["norm"], 0, 2)).parts
        lent = extent.file.borrow()
        fd = lent.__enter__()
    assert os.pread(fd, 8, extent.offset) == NORM[:2].tobytes()
    lent.__exit__(None, None, None)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_borrowed_file_that_changed_is_told_by_name(tmp_path: Path) -> None:
    path = save(tmp_path / "model.safetensors", norm=NORM)
    with open_source(tmp_path) as source:
        (extent,) = source.weights.extents(Block(source.specs["norm"], 0, 2)).parts
        os.utime(path, ns=(1, 1))
        with refusal("model.safetensors", "changed while in use"), extent.file.borrow():
            pass


def test_many_threads_read_the_same_numbers(source: Any) -> None:
    blocks = [Block(source.specs["norm"], start, start + 97) for start in range(0, 4000, 10)]
    with ThreadPoolExecutor(8) as pool:
        for block, values in zip(blocks, pool.map(source.weights.read, blocks), strict=True):
            assert np.array_equal(values, NORM[block.start : block.stop])


def test_reading_after_close_is_an_error(tmp_path: Path) -> None:
    with open_source(sharded(tmp_path)) as source:
        spec = source.specs["norm"]
    with pytest.raises(ValueError, match="after close"):
        source.weights.read(Block(spec, 0, 1))


def test_more_shards_than_open_files_can_be_read(tmp_path: Path) -> None:
    names = [f"model-{i:05d}-of-00020.safetensors" for i in range(1, 21)]
    for i, name in enumerate(names):
        save(tmp_path / name, **{f"t{i}": np.full(3, i, np.int32)})
    write_index(tmp_path, {f"t{i}": name for i, name in enumerate(names)})
    with open_source(tmp_path) as source:
        for _ in range(2):
            assert [int(whole(source, name)[0]) for name in source.specs] == list(range(20))


# identity


def test_the_identity_is_json_and_tells_a_changed_header(tmp_path: Path) -> None:
    path = save(tmp_path / "model.safetensors", embed=EMBED)
    with open_source(tmp_path) as source:
        before = source.identity.as_json()
    assert json.loads(json.dumps(before)) == before
    assert before["files"][0]["name"] == "model.safetensors"
    assert before["files"][0]["size"] == path.stat().st_size
    with open_source(path) as source:
        assert source.identity.as_json() == before
    save(path, embet=EMBED)
    with open_source(tmp_path) as source:
        assert source.identity.as_json()["files"][0]["header_sha256"] != before["files"][0]["header_sha256"]


def test_a_file_that_changes_while_in_use_is_told_by_name(tmp_path: Path) -> None:
    path = save(tmp_path / "model.safetensors", embed=EMBED)
    with open_source(tmp_path) as source:
        source.identity.restat()
        os.utime(path, ns=(1, 1))
        with refusal("model.safetensors", "changed while in use", "time 1 ns"):
            source.identity.restat()
        with refusal("model.safetensors", "changed while in use"):
            whole(source, "embed")
        path.unlink()
        with refusal("model.safetensors", "no such file", error=SourceNotFoundError):
            source.identity.restat()


def test_a_file_that_shrinks_during_a_read_names_file_and_tensor(tmp_path: Path) -> None:
    path = save(tmp_path / "model.safetensors", norm=NORM)
    with open_source(tmp_path) as source:
        source.weights.read(Block(source.specs["norm"], 0, 1))
        os.truncate(path, path.stat().st_size - 8)
        with refusal("model.safetensors", "tensor 'norm'", "truncated", "16380 of 16388 bytes"):
            whole(source, "norm")


# what is not a checkpoint


def test_a_path_that_is_not_there_is_told(tmp_path: Path) -> None:
    with refusal(str(tmp_path / "nowhere"), "no such folder", error=SourceNotFoundError):
        refused(tmp_path / "nowhere")


@pytest.mark.parametrize("source", ["", "a\0b", "./no/such/place"])
def test_strange_paths_are_told_too(source: str) -> None:
    with refusal(repr(source), "Check the path", error=SourceNotFoundError):
        refused(source)


@pytest.mark.parametrize(
    ("source", "command"),
    [
        ("no-such-org/Model-7B", "hf download no-such-org/Model-7B --local-dir DIR"),
        ("hf://no-such-org/Model-7B", "hf download no-such-org/Model-7B --local-dir DIR"),
        ("no-such-org/m@v1.0", "hf download no-such-org/m --revision v1.0 --local-dir DIR"),
    ],
)
def test_a_hub_id_is_told_how_to_become_a_folder(source: str, command: str) -> None:
    with refusal(source, "no such folder", command, error=SourceNotFoundError):
        refused(source)


def test_an_empty_folder_is_told(tmp_path: Path) -> None:
    with refusal(str(tmp_path), "an empty folder", "expected a .safetensors file"):
        refused(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt"])
def test_what_a_trainer_leaves_beside_is_no_second_file_of_weights(tmp_path: Path, name: str) -> None:
    for file in (name, "training_args.bin", "optimizer.pt", "config.json"):
        (tmp_path / file).touch()
    with refusal(f"{tmp_path / name}: an empty file, expected a file of torch.save"):
        refused(tmp_path)


def test_several_files_without_an_index_are_listed(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / INDEX).unlink()
    with refusal(str(tmp_path), ONE, TWO, f"no {INDEX}", f"Add {INDEX}"):
        refused(tmp_path)


def test_one_shard_of_two_is_not_a_checkpoint(tmp_path: Path) -> None:
    save(tmp_path / ONE, embed=EMBED)
    with refusal(ONE, "one of 2 shards", "Finish the download"):
        refused(tmp_path)


def test_a_lora_adapter_without_a_base_is_to_be_merged_into_its_base_first(tmp_path: Path) -> None:
    save(tmp_path / "adapter_model.safetensors", lora=EMBED)
    (tmp_path / "adapter_config.json").write_text("{}")
    with refusal("LoRA adapter", "a base is none", "Merge it into its base first"):
        refused(tmp_path)


def test_two_checkpoints_in_one_folder_are_refused(tmp_path: Path) -> None:
    save(sharded(tmp_path) / "model.safetensors", embed=EMBED)
    with refusal(str(tmp_path), "two checkpoints", "model.safetensors", INDEX, "Remove the one"):
        refused(tmp_path)


def test_a_link_to_nothing_is_told_by_name(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("gone")
    with refusal("model.safetensors", "no such file", error=SourceNotFoundError):
        refused(tmp_path)


# the index


def test_an_index_that_is_not_json_is_told(tmp_path: Path) -> None:
    (sharded(tmp_path) / INDEX).write_text("{")
    with refusal(INDEX, "is not JSON"):
        refused(tmp_path)


def test_a_tensor_that_the_index_lists_twice_is_told(tmp_path: Path) -> None:
    text = f'{{"weight_map": {{"embed": "{ONE}", "embed": "{TWO}"}}}}'
    (sharded(tmp_path) / INDEX).write_text(text)
    with refusal(INDEX, "'embed' appears twice"):
        refused(tmp_path)


@pytest.mark.parametrize("weight_map", [None, {}, [], "x"])
def test_an_index_without_a_weight_map_is_told(tmp_path: Path, weight_map: object) -> None:
    write_index(sharded(tmp_path), weight_map)
    with refusal(INDEX, "weight_map", "expected a file name for every tensor"):
        refused(tmp_path)


@pytest.mark.parametrize("file", ["../a.safetensors", "/etc/passwd", "a/../../b", "", ".", "a\0b", 3, None])
def test_an_index_stays_inside_its_folder(tmp_path: Path, file: object) -> None:
    write_index(sharded(tmp_path), {"embed": file})
    with refusal(INDEX, "tensor 'embed'", "expected a file inside the folder"):
        refused(tmp_path)


def test_files_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    (sharded(tmp_path) / TWO).unlink()
    with refusal(INDEX, "1 of its 2 files", TWO, "Finish the download", error=SourceNotFoundError):
        refused(tmp_path)


@pytest.mark.parametrize(
    ("listed", "found"), [({"ghost": ONE}, "no shard has it"), ({"norm": ONE}, f"found it in {TWO}")]
)
def test_a_shard_must_hold_what_the_index_says(tmp_path: Path, listed: dict[str, str], found: str) -> None:
    write_index(sharded(tmp_path), {"embed": ONE, "head": TWO, **listed})
    with refusal(INDEX, f"tensor '{next(iter(listed))}' should be in {ONE}", found):
        refused(tmp_path)


def test_an_index_must_list_what_its_shards_hold(tmp_path: Path) -> None:
    write_index(sharded(tmp_path), {"embed": ONE, "head": TWO})
    with refusal(f"{INDEX}: tensor 'norm' is in {TWO} and not in the index; expected every tensor", "Repair the index"):
        refused(tmp_path)
    write_index(tmp_path, {"embed": ONE, "head": TWO})
    save(tmp_path / TWO, norm=NORM, head=HEAD, more=NORM)
    with refusal(f"{INDEX}: 2 tensors are in {TWO} and not in the index: ", "more", "norm"):
        refused(tmp_path)


def test_stray_files_are_ignored_with_a_warning(tmp_path: Path) -> None:
    stray = "model-00003-of-00003.safetensors"
    for name in (stray, "pytorch_model.bin", "._model.safetensors"):
        (sharded(tmp_path) / name).touch()
    with open_source(tmp_path) as source:
        assert list(source.specs) == ["embed", "norm", "head"]
        strays, torch = map(str, source.notes)
    assert strays.endswith(f"ignored: {stray}")
    assert torch.endswith("ignored: pytorch_model.bin")
