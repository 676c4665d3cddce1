"""Gram matrices of tiny models equal what torch's own hooks add up, and survive a kill. Needs transformers."""

import json
import subprocess
import sys

import numpy as np
import pytest

from agentmerge.api import merge
from agentmerge.errors import DataError, MergeError, OutputError, RecipeError, SourceError
from agentmerge.importance import grams as module
from agentmerge.importance.grams import GramOptions, measure_grams
from agentmerge.importance.record import GramRecord
from agentmerge.sources.opening import opened
from agentmerge.testing import read_checkpoint, write_checkpoint
from tests.slow.models import EXAMPLES, ids, make_data, make_model

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

LAYERS = [f"model.layers.{i}." for i in range(2)]
ATTENTION, MLP = (
    ("self_attn.q_proj.weight", "self_attn.o_proj.weight"),
    ("mlp.gate_proj.weight", "mlp.down_proj.weight"),
)
ALONE = [layer + name for layer in LAYERS for name in (*ATTENTION, *MLP)]
SHARED = ("self_attn.k_proj.weight", "self_attn.v_proj.weight"), (), ("mlp.up_proj.weight",), ()


def wanted(**settings):
    return GramOptions(examples=5, device="cpu", dtype="float32", **settings)


def by_hooks(folder, examples=EXAMPLES):
    """X^T X / n of every linear layer by itself, float64, from what torch's hooks are shown after the layer ran."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model, rows = transformers.AutoModelForCausalLM.from_pretrained(folder).eval(), {}
    for name, part in model.named_modules():
        if name.endswith("_proj"):
            part.register_forward_hook(
                lambda _, given, __, name=name: rows.setdefault(name, []).append(given[0].detach().double()[0])
            )
    with torch.no_grad():
        for example in examples:
            model(torch.tensor([ids(example)[0]]))
    found = {f"{name}.weight": torch.cat(parts).numpy() for name, parts in rows.items()}
    return {name: inputs.T @ inputs / len(inputs) for name, inputs in found.items()}


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["untied", "tied"])
def test_they_equal_what_hooks_add_up_and_layers_of_one_input_share_one(tmp_path, kind):
    model, data = make_model(tmp_path / "model", kind), make_data(tmp_path)
    record = measure_grams(model, data, tmp_path / "out", wanted())
    expected, found = by_hooks(model), read_checkpoint(tmp_path / "out")
    assert list(found) == ALONE
    assert {gram.name: tuple(gram.shared) for gram in record.grams} == {
        name: tuple(name.rsplit(".", 3)[0] + "." + other for other in shared)
        for name, shared in zip(ALONE, SHARED * 2, strict=True)
    }
    for gram in record.grams:
        array = found[gram.name]
        assert (array.dtype, array.shape) == (np.float64, (gram.inputs, gram.inputs))
        np.testing.assert_array_equal(array, array.T)
        for name in (gram.name, *gram.shared):  # k, v and up are measured by themselves there
            np.testing.assert_allclose(array, expected[name], rtol=1e-6, atol=1e-6 * np.abs(array).max(), err_msg=name)
    assert record.tokens == sum(len(ids(example)[0]) for example in EXAMPLES)
    assert (record.left_out, GramRecord.load(tmp_path / "out")) == ([], record)


def test_neither_memory_nor_shards_change_a_number(tmp_path, monkeypatch):
    model, data = make_model(tmp_path / "model"), make_data(tmp_path)
    measure_grams(model, data, tmp_path / "one", wanted())
    measure_grams(model, data, tmp_path / "many", wanted(memory=1e-6))  # a matrix at a time
    assert files(tmp_path / "one") == files(tmp_path / "many")
    monkeypatch.setattr(module, "SHARD_SIZE", 5_000)
    measure_grams(model, data, tmp_path / "shards", wanted(memory=5e-6))
    assert len(files(tmp_path / "shards")) > 4
    one, shards = (read_checkpoint(tmp_path / name) for name in ("one", "shards"))
    for name, array in one.items():
        np.testing.assert_array_equal(shards[name], array)
    with opened(None, str(tmp_path / "shards")) as source:
        assert json.loads(source.metadata["shared"])[LAYERS[1] + "mlp.up_proj.weight"] == LAYERS[1] + MLP[0]


def test_float32_takes_half_the_room_and_is_near(tmp_path):
    model, data = make_model(tmp_path / "model"), make_data(tmp_path)
    for stored in ("float64", "float32"):
        measure_grams(model, data, tmp_path / stored, wanted(stored=stored))
    exact = read_checkpoint(tmp_path / "float64")
    for name, array in read_checkpoint(tmp_path / "float32").items():
        assert array.dtype == np.float32
        np.testing.assert_allclose(array, exact[name], rtol=1e-5, atol=1e-6 * np.abs(array).max())


KILLED = """
import os, sys
from pathlib import Path
from agentmerge.importance.grams import GramOptions, measure_grams

class Watch:
    left = int(sys.argv[4])
    def begin(self, phase, total): pass
    def advance(self, n):
        self.left -= 1
        if self.left < 0:
            os._exit(9)

options = GramOptions(examples=5, device="cpu", dtype="float32", every=0, memory=2e-5)
measure_grams(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), options, watch=Watch())
"""


@pytest.mark.parametrize("after", [2, 9])
def test_a_killed_run_resumes_to_the_same_bytes(tmp_path, after):
    """2e-5 GB are two rounds and more; the second begins with the seventh call."""
    model, data = make_model(tmp_path / "model", "tied"), make_data(tmp_path)
    measure_grams(model, data, tmp_path / "whole", wanted())
    command = [sys.executable, "-c", KILLED, model, data, tmp_path / "out", str(after)]
    assert subprocess.run(command).returncode == 9
    assert not (tmp_path / "out").exists()
    seen = Counted()
    measure_grams(model, data, tmp_path / "out", wanted(memory=2e-5), watch=seen)
    whole = Counted()
    measure_grams(model, data, tmp_path / "again", wanted(memory=2e-5), watch=whole)
    assert seen.tokens < whole.tokens or after < 6
    assert seen.calls < whole.calls
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert not list(tmp_path.glob(".out*"))


class Counted:
    """A watch that counts."""

    calls = tokens = 0

    def begin(self, phase, total):
        self.tokens = total

    def advance(self, n):
        self.calls += 1


def test_another_input_does_not_resume_and_says_what_differs(tmp_path):
    model, data, out = make_model(tmp_path / "model"), make_data(tmp_path), tmp_path / "out"
    command = [sys.executable, "-c", KILLED, model, data, out, "3"]
    assert subprocess.run(command).returncode == 9
    for changed, told in (({"stored": "float32"}, "stored was"), ({"linear": "*.q_proj.weight"}, "linear was")):
        with pytest.raises(OutputError, match=told):
            measure_grams(model, data, out, wanted(**changed))


def test_experts_that_no_layer_takes_inputs_for_are_left_out_and_named(tmp_path):
    model, data = make_model(tmp_path / "model", "experts"), make_data(tmp_path)
    record = measure_grams(model, data, tmp_path / "out", wanted())
    found, experts = read_checkpoint(tmp_path / "out"), [n for n in read_checkpoint(model) if ".experts." in n]
    measured = {name for gram in record.grams for name in (gram.name, *gram.shared)}
    assert set(record.left_out) == set(experts) - measured
    assert len(record.left_out) in (0, len(experts))  # transformers 5 joins them, those before had a layer for each
    if record.left_out:
        assert any("weights have no matrix" in text for text in record.warnings)
    assert LAYERS[0] + ATTENTION[1] in found


def test_numbers_that_are_not_finite_and_globs_that_fit_nothing_are_told(tmp_path):
    model, data = make_model(tmp_path / "model"), make_data(tmp_path)
    with pytest.raises(SourceError, match=r"no linear layer has a weight that fits \*\.none"):
        measure_grams(model, data, tmp_path / "out", wanted(linear="*.none"))
    tensors = read_checkpoint(model)
    tensors["model.layers.0.input_layernorm.weight"] = np.full(16, np.inf, np.float32)
    write_checkpoint(model, tensors, config=json.loads((model / "config.json").read_text()))
    with pytest.raises(DataError, match="line 1 gives inputs of layers that are not finite"):
        measure_grams(model, data, tmp_path / "out", wanted())
    assert not (tmp_path / "out").exists()


def test_few_tokens_are_told_and_a_merge_reads_them(tmp_path):
    base, data = make_model(tmp_path / "base"), make_data(tmp_path)
    agents, tensors = {}, read_checkpoint(base)
    for seed, name in enumerate(("code", "tool")):
        rng, agent = np.random.default_rng(seed), make_model(tmp_path / name)
        moved = {n: a + np.float32(1e-3) * rng.standard_normal(a.shape).astype(np.float32) for n, a in tensors.items()}
        write_checkpoint(agent, moved, config=json.loads((agent / "config.json").read_text()))
        measure_grams(agent, data, tmp_path / f"{name}-grams", wanted())
        agents[name] = {"source": str(agent), "grams": str(tmp_path / f"{name}-grams")}
    few = measure_grams(agent, data, tmp_path / "few", wanted().model_copy(update={"examples": 1}))
    assert "9 tokens are fewer than the inputs of 8 matrices" in few.warnings[-1]
    swapped = {n: {**agents[n], "grams": agents[o]["grams"]} for n, o in (("code", "tool"), ("tool", "code"))}
    with pytest.raises(RecipeError, match=r"agents\.code\.grams: .*tool-grams was measured on agent 'tool' \("):
        merge({"base": str(base), "agents": swapped, "method": "regmean"}, tmp_path / "merged")
    merge({"base": str(base), "agents": agents, "method": "regmean"}, tmp_path / "merged")
    name = LAYERS[1] + "mlp.up_proj.weight"
    grams = [read_checkpoint(tmp_path / f"{agent}-grams")[LAYERS[1] + MLP[0]] for agent in agents]
    scaled = [0.9 * gram + 0.1 * np.diag(np.diag(gram)) for gram in grams]
    weights = [read_checkpoint(tmp_path / agent)[name].astype(np.float64) for agent in agents]
    expected = sum(w @ g for w, g in zip(weights, scaled, strict=True)) @ np.linalg.inv(sum(scaled))
    np.testing.assert_allclose(read_checkpoint(tmp_path / "merged")[name], expected, rtol=1e-4, atol=1e-6)


def test_the_same_weights_in_other_files_are_measured_to_the_same_bytes(tmp_path):
    model, data = make_model(tmp_path / "model", "tied"), make_data(tmp_path)
    copy = make_model(tmp_path / "copy", "tied")
    (copy / "model.safetensors").unlink()
    config = json.loads((model / "config.json").read_text())
    write_checkpoint(copy, dict(reversed(read_checkpoint(model).items())), config=config, shard_size=3000)
    assert len(list(copy.glob("*.safetensors"))) > 1
    for folder in (model, copy):
        measure_grams(folder, data, tmp_path / f"of-{folder.name}", wanted())
    one, two = (files(tmp_path / f"of-{folder.name}")["model.safetensors"] for folder in (model, copy))
    assert one == two
    assert b"measured_on" in one


def test_a_gpu_gives_nearly_the_same(tmp_path):
    if not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("no CUDA device")
    model, data = make_model(tmp_path / "model"), make_data(tmp_path)
    measure_grams(model, data, tmp_path / "cpu", wanted())
    measure_grams(model, data, tmp_path / "gpu", wanted().model_copy(update={"device": "cuda"}))
    exact = read_checkpoint(tmp_path / "cpu")
    for name, array in read_checkpoint(tmp_path / "gpu").items():
        np.testing.assert_allclose(array, exact[name], rtol=1e-3, atol=1e-4 * np.abs(array).max())


def test_layers_that_do_not_share_after_all_end_the_run(tmp_path, monkeypatch):
    model, data = make_model(tmp_path / "model"), make_data(tmp_path)
    inputs = pytest.importorskip("agentmerge.importance.inputs")
    found = inputs.Inputs.layers

    def joined(self, keep, example):
        first, second, *rest = found(self, keep, example)
        return (inputs.Layer(first.modules + second.modules, first.weights + second.weights, first.size), *rest)

    monkeypatch.setattr(inputs.Inputs, "layers", joined)
    with pytest.raises(MergeError, match="given other inputs"):
        measure_grams(model, data, tmp_path / "out", wanted())
