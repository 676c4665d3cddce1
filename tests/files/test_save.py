"""Arrays at hand become a checkpoint, and one file takes another's place whole or not at all."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from agentmerge.files.layout import INDEX
from agentmerge.files.save import PART, save, save_file, spec_of
from agentmerge.testing import read_checkpoint

TENSORS = {
    "b": np.arange(12, dtype=np.float32).reshape(3, 4).T,
    "a": np.array(7, np.int64),
    "c": np.linspace(-1, 1, 5).astype(ml_dtypes.bfloat16),
    "none": np.zeros((0, 3), np.float16),
}


def same(found):
    assert list(found) == list(TENSORS)
    for name, array in TENSORS.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


def test_one_file_holds_everything_and_what_is_said_of_it(tmp_path):
    save(tmp_path / "new" / "folder", TENSORS, metadata={"work": "mine"})
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["model.safetensors"]
    same(read_checkpoint(tmp_path / "new" / "folder"))
    with safe_open(tmp_path / "new" / "folder" / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt", "work": "mine"}


def test_shards_have_an_index(tmp_path):
    layout = save(tmp_path, TENSORS, shard_size=10)
    names = [shard.name for shard in layout.shards]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, INDEX])
    index = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    assert index == {name: names[layout.places[name].shard] for name in TENSORS}
    same(read_checkpoint(tmp_path))


def test_a_longer_old_file_leaves_nothing_behind(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"x" * 10_000)
    save(tmp_path, TENSORS)
    same(read_checkpoint(tmp_path))


def test_a_file_takes_the_place_of_the_old_one(tmp_path):
    path, specs = tmp_path / "sums.safetensors", [spec_of(name, array) for name, array in TENSORS.items()]
    arrays = {name: np.ascontiguousarray(array) for name, array in TENSORS.items()}
    for text in ("1", "2"):
        save_file(path, specs, reversed(list(arrays.items())), {"text": text})
        assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
        same(read_checkpoint(path))
        with safe_open(path, "np") as file:
            assert file.metadata()["text"] == text


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
def test_a_failing_file_leaves_the_old_one(tmp_path, error):
    path, specs = tmp_path / "sums.safetensors", [spec_of("c", TENSORS["c"])]
    save_file(path, specs, [("c", TENSORS["c"])], {})
    before = path.read_bytes()

    def failing():
        assert (tmp_path / (path.name + PART)).exists()
        raise error
        yield

    with pytest.raises(type(error)):
        save_file(path, specs, failing(), {})
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
