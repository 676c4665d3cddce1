"""The importance of tiny models equals its definition, and survives a kill. Needs torch and transformers."""

import json
import subprocess
import sys

import numpy as np
import pytest

from agentmerge.api import merge
from agentmerge.errors import DataError, MergeError, OutputError, RecipeError, SourceError
from agentmerge.importance import run as module
from agentmerge.importance.prepare import Options
from agentmerge.importance.record import ImportanceRecord
from agentmerge.importance.run import measure
from agentmerge.sources.opening import opened
from agentmerge.testing import read_checkpoint, write_checkpoint
from tests.slow.models import EXAMPLES, KINDS, ids, make_data, make_model

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def by_definition(folder, examples):
    """F by the book in float64: a forward pass per prefix, autograd per token, a square per example."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).double().eval()
    total = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for example in examples:
        tokens, start = ids(example)
        score = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
        for t in range(start, len(tokens)):
            logits = model(torch.tensor([tokens[:t]])).logits[0, -1]
            likelihood = torch.log_softmax(logits, dim=-1)[tokens[t]]
            grads = torch.autograd.grad(likelihood, list(model.parameters()), allow_unused=True)
            for name, grad in zip(total, grads, strict=True):
                score[name] += 0 if grad is None else grad
        for name, value in score.items():
            total[name] += value**2
    return {name: (value / len(examples)).numpy() for name, value in total.items()}


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["untied", "tied"])
def test_it_equals_the_definition(tmp_path, kind):
    model, data = make_model(tmp_path / "model", kind), make_data(tmp_path)
    record = measure(model, data, tmp_path / "out", Options(examples=5, device="cpu", dtype="float64"))
    expected, found = by_definition(model, EXAMPLES), read_checkpoint(tmp_path / "out")
    assert found.keys() == expected.keys()
    for name, array in found.items():
        # not nearer: transformers takes norms and rotary angles in float32, whatever the model's dtype
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-7 * expected[name].max(), err_msg=name)
        assert (array >= 0).all()
    assert record.tensors.zero == []
    assert record.data.response_tokens == sum(len(example["response"]) for example in EXAMPLES)


def test_experts_are_divided_as_the_files_divide_them(tmp_path):
    model, data = make_model(tmp_path / "model", "experts"), make_data(tmp_path)
    measure(model, data, tmp_path / "out", Options(examples=5, device="cpu"))
    found, weights = read_checkpoint(tmp_path / "out"), read_checkpoint(model)
    assert {name: array.shape for name, array in found.items()} == {n: a.shape for n, a in weights.items()}
    assert any("experts.3.down_proj" in name for name in found)
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    # a step of one expert's weight in its file changes the likelihood by the gradient whose square was measured
    name, one = "model.layers.1.mlp.experts.2.down_proj.weight", EXAMPLES[:1]
    measure(model, make_data(tmp_path, one), tmp_path / "one", Options(examples=1, device="cpu"))
    square = read_checkpoint(tmp_path / "one")[name]
    at = np.unravel_index(square.argmax(), square.shape)
    tokens, start = ids(one[0])
    likelihoods = []
    for step in (-5e-3, 5e-3):
        moved = {**weights, name: weights[name].copy()}
        moved[name][at] += step
        write_checkpoint(tmp_path / str(step), moved, config=json.loads((model / "config.json").read_text()))
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / str(step)).eval()
        logits = torch.log_softmax(loaded(torch.tensor([tokens])).logits[0].detach(), dim=-1)
        likelihoods.append(sum(float(logits[t - 1, tokens[t]]) for t in range(start, len(tokens))))
    assert square[at] == pytest.approx(((likelihoods[1] - likelihoods[0]) / 1e-2) ** 2, rel=2e-2)


def test_float32_is_near_float64_and_squares_are_not_negative(tmp_path):
    model, data = make_model(tmp_path / "model"), make_data(tmp_path)
    for dtype in ("float32", "float64", "bfloat16"):
        measure(model, data, tmp_path / dtype, Options(examples=5, device="cpu", dtype=dtype))
    exact = read_checkpoint(tmp_path / "float64")
    for dtype, rtol in (("float32", 1e-3), ("bfloat16", 0.3)):
        for name, array in read_checkpoint(tmp_path / dtype).items():
            assert array.dtype == np.float32
            assert (array >= 0).all()
            np.testing.assert_allclose(array.sum(), exact[name].sum(), rtol=rtol, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shard_size", [4_000, 5_000_000_000])
def test_the_output_has_exactly_the_models_names_and_shapes(tmp_path, monkeypatch, kind, shard_size):
    monkeypatch.setattr(module, "SHARD_SIZE", shard_size)
    model, data = make_model(tmp_path / "model", kind, "bfloat16"), make_data(tmp_path)
    record = measure(model, data, tmp_path / "out", Options(examples=2, device="cpu"))
    with opened(None, str(model)) as weights, opened(None, str(tmp_path / "out")) as found:
        assert {n: s.shape for n, s in found.specs.items()} == {n: s.shape for n, s in weights.specs.items()}
        assert {spec.dtype for spec in found.specs.values()} == {"F32"}
        assert (len(found.identity.files) > 1) == (shard_size == 4_000)
        assert found.notes == ()
    assert ImportanceRecord.load(tmp_path / "out") == record


def stored_with(model, **more):
    """The same model with more tensors in its file."""
    tensors = {**read_checkpoint(model), **more}
    write_checkpoint(model, tensors, config=json.loads((model / "config.json").read_text()))


def test_a_tied_head_in_the_file_shares_the_embeddings_array(tmp_path):
    model, data = make_model(tmp_path / "model", "tied"), make_data(tmp_path)
    measure(model, data, tmp_path / "one", Options(examples=5, device="cpu"))
    stored_with(model, **{"lm_head.weight": read_checkpoint(model)["model.embed_tokens.weight"]})
    record = measure(model, data, tmp_path / "two", Options(examples=5, device="cpu"))
    assert record.tensors.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    assert files(tmp_path / "one")["model.safetensors"] == files(tmp_path / "two")["model.safetensors"]


def test_a_tensor_that_no_gradient_reaches_is_zero_and_named(tmp_path):
    model, data = make_model(tmp_path / "model"), make_data(tmp_path)
    frequencies = "model.layers.0.self_attn.rotary_emb.inv_freq"
    stored_with(model, **{frequencies: np.ones(2, np.float32), "steps": np.ones(3, np.int64)})
    record = measure(model, data, tmp_path / "out", Options(examples=5, device="cpu"))
    assert (record.tensors.zero, record.tensors.not_float) == ([frequencies], ["steps"])
    assert "1 tensors are zero" in record.warnings[0]
    found = read_checkpoint(tmp_path / "out")
    assert not found[frequencies].any()
    assert "steps" not in found


KILLED = """
import os, sys
from pathlib import Path
from agentmerge.importance.prepare import Options
from agentmerge.importance.run import measure

class Watch:
    left = int(sys.argv[4])
    def begin(self, phase, total, **_): pass
    def advance(self, n, **_):
        self.left -= 1
        if self.left < 0:
            os._exit(9)

measure(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), Options(examples=5, device="cpu", every=0), watch=Watch())
"""


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_killed_run_resumes_to_the_same_bytes(tmp_path, after):
    model, data = make_model(tmp_path / "model", "tied"), make_data(tmp_path)
    wanted = Options(examples=5, device="cpu")
    measure(model, data, tmp_path / "whole", wanted)
    command = [sys.executable, "-c", KILLED, model, data, tmp_path / "out", str(after)]
    assert subprocess.run(command).returncode == 9
    assert not (tmp_path / "out").exists()
    seen = Count()
    measure(model, data, tmp_path / "out", wanted, watch=seen)
    assert seen.calls == 1 + 5 - min(after, 4)  # the first tells what was there; the last example is not saved
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert not list(tmp_path.glob(".out*"))


class Count:
    """A watch that counts its calls."""

    calls = 0

    def begin(self, phase, total, **_):
        pass

    def advance(self, n, **_):
        self.calls += 1


class Stopped:
    """A watch that ends the run after so many calls."""

    def __init__(self, after):
        self.left = after

    def begin(self, phase, total, **_):
        pass

    def advance(self, n, **_):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


def test_another_input_does_not_resume_and_says_what_differs(tmp_path):
    model, data, out = make_model(tmp_path / "model"), make_data(tmp_path), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        measure(model, data, out, Options(examples=5, device="cpu", every=0), watch=Stopped(3))
    for changed, told in (
        (Options(examples=4), "examples was 5, is 4"),
        (Options(examples=5, max_length=9), "settings"),
    ):
        with pytest.raises(OutputError, match=told):
            measure(model, data, out, changed.model_copy(update={"device": "cpu"}))
    make_data(tmp_path, EXAMPLES[::-1])
    with pytest.raises(OutputError, match="data was"):
        measure(model, data, out, Options(examples=5, device="cpu"))
    seen = Count()
    measure(model, data, out, Options(examples=5, device="cpu"), overwrite=True, watch=seen)
    assert seen.calls == 6
    measure(model, data, tmp_path / "whole", Options(examples=5, device="cpu"))
    assert files(out) == files(tmp_path / "whole")


def test_numbers_that_are_not_finite_end_the_run_and_it_starts_over(tmp_path):
    model, data = make_model(tmp_path / "model"), make_data(tmp_path)
    good = read_checkpoint(model)
    stored_with(model, **{"model.norm.weight": np.full(16, np.nan, np.float32)})
    with pytest.raises(DataError, match="line 1 gives a gradient that is not finite"):
        measure(model, data, tmp_path / "out", Options(examples=5, device="cpu"))
    assert not (tmp_path / "out").exists()
    stored_with(model, **good)
    measure(model, data, tmp_path / "out", Options(examples=5, device="cpu"))


def test_what_transformers_cannot_load_is_told(tmp_path):
    data = make_data(tmp_path)
    model = make_model(tmp_path / "model")
    good = read_checkpoint(model)
    config = json.loads((model / "config.json").read_text())
    write_checkpoint(model, {n: a for n, a in good.items() if n != "model.norm.weight"}, config=config)
    with pytest.raises(SourceError, match=r"the files lack model\.norm\.weight"):
        measure(model, data, tmp_path / "out", Options(device="cpu"))
    write_checkpoint(model, good, config={**config, "model_type": "unheard_of"})
    with pytest.raises(SourceError, match="can't load"):
        measure(model, data, tmp_path / "out", Options(device="cpu"))
    bare = write_checkpoint(tmp_path / "bare", good, config=config)
    with pytest.raises(SourceError, match="the folder has no tokenizer"):
        measure(bare, data, tmp_path / "out", Options(device="cpu"))
    (bare / "tokenizer.json").write_text("{}")
    with pytest.raises(SourceError, match="can't load its tokenizer"):
        measure(bare, data, tmp_path / "out", Options(device="cpu"))
    assert not list(tmp_path.glob(".out*"))


def test_fewer_examples_cut_prompts_and_skipped_responses_are_counted(tmp_path):
    model, data = make_model(tmp_path / "model"), make_data(tmp_path)
    record = measure(model, data, tmp_path / "out", Options(device="cpu", max_length=8))
    assert (record.data.examples, record.data.cut, record.data.skipped) == (3, 2, 2)
    assert [text.split(" ", 1)[1][:12] for text in record.warnings[1:]] == ["prompts lost", "examples ski"]
    assert "3 examples can be used, 256 were asked for" in record.warnings[0]


def test_an_unknown_device_or_dtype_is_told(tmp_path):
    torch = pytest.importorskip("torch")
    model, data = make_model(tmp_path / "model"), make_data(tmp_path)
    with pytest.raises(RecipeError, match=r"--dtype: 'bfloat' is unknown\. Did you mean 'bfloat16'"):
        measure(model, data, tmp_path / "out", Options(dtype="bfloat"))
    with pytest.raises(RecipeError, match="--device: 'gpu' is unknown"):
        measure(model, data, tmp_path / "out", Options(device="gpu"))
    if not torch.cuda.is_available():
        with pytest.raises(MergeError, match="no CUDA device"):
            measure(model, data, tmp_path / "out", Options(device="cuda"))


def test_a_gpu_gives_nearly_the_same(tmp_path):
    if not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("no CUDA device")
    model, data = make_model(tmp_path / "model", "tied"), make_data(tmp_path)
    measure(model, data, tmp_path / "cpu", Options(examples=5, device="cpu", dtype="float64"))
    measure(model, data, tmp_path / "gpu", Options(examples=5, device="cuda", dtype="float64"))
    record = measure(model, data, tmp_path / "bf16", Options(examples=5, device="auto", every=0))
    assert (record.settings.device, record.settings.dtype) == ("cuda", "bfloat16")
    found, exact = read_checkpoint(tmp_path / "gpu"), read_checkpoint(tmp_path / "cpu")
    for name, array in exact.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-9 * array.max(), err_msg=name)
    for name, array in read_checkpoint(tmp_path / "bf16").items():
        np.testing.assert_allclose(array.sum(), exact[name].sum(), rtol=0.3, err_msg=name)


def test_a_merge_opens_it(tmp_path):
    model, data = make_model(tmp_path / "model"), make_data(tmp_path)
    moved = {name: array * np.float32(1.01) for name, array in read_checkpoint(model).items()}
    agent = tmp_path / "agent"
    make_model(agent)
    stored_with(agent, **moved)
    measure(agent, data, tmp_path / "out", Options(examples=5, device="cpu"))
    recipe = {
        "base": str(model),
        "agents": {"code": {"source": str(agent), "importance": str(tmp_path / "out")}},
        "method": "fisher",
    }
    measure(model, data, tmp_path / "of-base", Options(examples=5, device="cpu"))
    swapped = {**recipe, "agents": {"code": {"source": str(agent), "importance": str(tmp_path / "of-base")}}}
    with pytest.raises(RecipeError, match=r"agents\.code\.importance: .*of-base was measured on the base \("):
        merge(swapped, tmp_path / "merged")
    try:
        merge(recipe, tmp_path / "merged")
    except RecipeError as error:
        pytest.skip(str(error))
    found, base, importance = (read_checkpoint(tmp_path / name) for name in ("merged", "model", "out"))
    for name, array in moved.items():  # a letter that no example has is of no importance: the base stays
        expected = np.where(importance[name] > 0, array, base[name])
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, err_msg=name)
