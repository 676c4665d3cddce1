"""Names, unfinished sums and the written means, without torch."""

import numpy as np
import pytest

from agentmerge.errors import OutputError, SourceError
from agentmerge.files.layout import INDEX, index_json, plan_layout
from agentmerge.files.writer import Writer
from agentmerge.importance import store as module
from agentmerge.importance.names import Parameter, match
from agentmerge.importance.store import SUMS, Progress, SumStore, write_means
from agentmerge.tensors import TensorSpec
from agentmerge.testing import read_checkpoint

SPECS = (TensorSpec("a", "F32", (3, 5)), TensorSpec("b", "F32", ()), TensorSpec("c", "F32", (7,)))


def sums(seed=0):
    generator = np.random.default_rng(seed)
    return {spec.name: generator.random(spec.shape, np.float32) for spec in SPECS}


def stored(**dtypes):
    return {name: TensorSpec(name, dtype, (2, 3)) for name, dtype in dtypes.items()}


def named(*names, shape=(2, 3)):
    return {name: Parameter(shape, key) for key, name in enumerate(names)}


def test_sums_come_back_with_how_far_the_run_was(tmp_path):
    store, wanted = SumStore(tmp_path, SPECS, "work"), sums()
    store.save(wanted.items(), Progress(64, -0.1))
    done, arrays = SumStore(tmp_path, SPECS, "work").load()
    assert done == Progress(64, -0.1)
    for name, array in arrays:
        assert np.array_equal(array, wanted[name].reshape(-1))
    assert [path.name for path in tmp_path.iterdir()] == [SUMS]


def test_nothing_saved_is_nothing_to_go_on_from(tmp_path):
    assert SumStore(tmp_path, SPECS, "work").load() is None


@pytest.mark.parametrize(("specs", "work"), [(SPECS, "other"), (SPECS[:2], "work"), (SPECS[::-1], "work")])
def test_the_sums_of_another_work_are_not_used(tmp_path, specs, work):
    SumStore(tmp_path, SPECS, "work").save(sums().items(), Progress(1))
    assert SumStore(tmp_path, specs, work).load() is None


def test_a_save_that_fails_keeps_the_one_before(tmp_path):
    store = SumStore(tmp_path, SPECS, "work")
    store.save(sums().items(), Progress(1, -1.0))

    def failing():
        yield "a", sums(1)["a"]
        raise OSError("no space left")

    with pytest.raises(OutputError, match="no space left"):
        store.save(failing(), Progress(2, -2.0))
    assert store.load()[0] == Progress(1, -1.0)
    assert not (tmp_path / (SUMS + ".part")).exists()


def test_a_kill_while_saving_leaves_no_trace(tmp_path):
    SumStore(tmp_path, SPECS, "work").save(sums().items(), Progress(1))
    (tmp_path / (SUMS + ".part")).write_bytes(b"half")
    assert SumStore(tmp_path, SPECS, "work").load()[0] == Progress(1)
    assert [path.name for path in tmp_path.iterdir()] == [SUMS]


def test_too_little_disk_is_told_before_it_is_written_to(tmp_path, monkeypatch):
    store = SumStore(tmp_path, SPECS, "work")
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 91}))
    with pytest.raises(OutputError, match="92 bytes are needed to save the unfinished sums, 91 are free"):
        store.save(sums().items(), Progress(1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("shard_size", [1, 1000])
def test_means_are_written_and_what_has_no_sum_is_zero(tmp_path, shard_size):
    wanted = sums()
    del wanted["b"]
    layout = plan_layout(SPECS, shard_size)
    with Writer(tmp_path / "out", layout, {"x": 1}) as writer:
        assert write_means(writer, layout, wanted, 3) == ["b"]
        index = index_json(layout)
        writer.finish({} if index is None else {INDEX: index})
    found = read_checkpoint(tmp_path / "out")
    assert {name: array.shape for name, array in found.items()} == {spec.name: spec.shape for spec in SPECS}
    assert np.array_equal(found["a"], wanted["a"] / np.float32(3))
    assert found["b"] == 0


def test_every_float_tensor_has_an_array_in_the_order_of_the_files():
    found = match(stored(b="BF16", a="F16", buffer="F32", steps="I64"), named("a", "b"), "model")
    assert found.specs == tuple(TensorSpec(name, "F32", (2, 3)) for name in ("b", "a", "buffer"))
    assert (found.tied, found.not_float) == ({}, ("steps",))


def test_two_names_of_one_parameter_have_one_array():
    model = {"embed": Parameter((2, 3), 1), "other": Parameter((2, 3), 2), "head": Parameter((2, 3), 1)}
    both = match(stored(head="BF16", embed="BF16", other="BF16"), model, "model")
    assert [spec.name for spec in both.specs] == ["embed", "other"]
    assert both.tied == {"head": "embed"}
    assert [spec.name for spec in match(stored(head="F32", other="F32"), model, "model").specs] == ["head", "other"]


def test_a_parameter_that_no_file_holds_is_told():
    with pytest.raises(SourceError, match="model: the files hold no tensor fused"):
        match(stored(a="BF16"), named("a", "fused"), "model")


def test_another_shape_is_told():
    with pytest.raises(SourceError, match=r"a is \[2, 3\] in the file and \[3, 2\] in the model"):
        match(stored(a="BF16"), named("a", shape=(3, 2)), "model")
