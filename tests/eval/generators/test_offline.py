"""vLLM and SGLang in this process, against stand-ins of their calls: neither is installed where these tests run."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.generators.sglang import SGLang
from agentmerge.eval.generators.vllm import Vllm
from agentmerge.eval.request import Request, Response, Sampling

DRAWN = Sampling(max_tokens=5, temperature=0.5, top_p=0.9, top_k=3, stop=("x",), seed=7)
GREEDY = Sampling(max_tokens=8)


class FakeVllm(ModuleType):
    """Answers with the number of tokens that it was given; a prompt of two is cut off."""

    def __init__(self) -> None:
        super().__init__("vllm")
        self.calls: list[int] = []
        self.given: list[dict] = []
        self.SamplingParams = lambda **fields: fields
        self.LLM = self._engine

    def _engine(self, **fields):
        self.fields = fields
        return self

    def generate(self, prompts, sampling, use_tqdm):
        self.calls.append(len(prompts))
        self.given += sampling
        return [self._output(one["prompt_token_ids"]) for one in prompts]

    def _output(self, ids):
        reason = "length" if len(ids) == 2 else "stop"
        answer = SimpleNamespace(text=str(len(ids)), finish_reason=reason, stop_reason=None, token_ids=[1, 2, 3])
        return SimpleNamespace(outputs=[answer], prompt_token_ids=ids)


class FakeSGLang(ModuleType):
    """The same with SGLang's calls; ends before a stop text."""

    def __init__(self) -> None:
        super().__init__("sglang")
        self.Engine = lambda **fields: self

    def generate(self, input_ids, sampling_params):
        self.given = sampling_params
        reason = {"type": "stop", "matched": "x"}
        facts = {"finish_reason": reason, "completion_tokens": 3}
        return [{"text": str(len(ids)), "meta_info": {**facts, "prompt_tokens": len(ids)}} for ids in input_ids]


@pytest.fixture(autouse=True)
def _words_are_tokens(monkeypatch, tmp_path):
    monkeypatch.setattr("agentmerge.eval.generators.offline.load_tokenizer", lambda folder: None)
    monkeypatch.setattr("agentmerge.eval.generators.offline.encode", lambda _, request: request.text.split())
    monkeypatch.setattr("agentmerge.eval.generators.offline.find_spec", lambda name: object())
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"max_position_embeddings": 20}}))


def found(generator, requests) -> dict[str, Response]:
    answers: dict[str, Response] = {}
    generator.generate(requests, lambda request, response: answers.update({request.text: response}))
    return answers


def test_vllm_is_given_tokens_and_every_sampling_parameter(monkeypatch, tmp_path):
    engine = FakeVllm()
    monkeypatch.setitem(sys.modules, "vllm", engine)
    generator = Vllm(str(tmp_path), gpus=2, batch=2)
    requests = [Request.raw("a", DRAWN, sample=1), Request.raw("a b", GREEDY), Request.raw("a b c", GREEDY)]
    assert found(generator, requests) == {
        "a": Response("1", True, 1, 3),
        "a b": Response("2", False, 2, 3),
        "a b c": Response("3", True, 3, 3),
    }
    assert engine.calls == [2, 1], "a batch is stored before the next begins"
    assert engine.fields == {
        "model": str(tmp_path), "dtype": "auto", "tensor_parallel_size": 2, "max_model_len": None,
        "generation_config": "vllm",
    }  # fmt: skip
    common = {"n": 1, "repetition_penalty": 1.0}
    assert engine.given[:2] == [
        common | {"max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "stop": ["x"], "seed": 8},
        common | {"max_tokens": 8, "temperature": 0.0, "top_p": 1.0, "top_k": 0, "stop": [], "seed": None},
    ]


def test_sglang_is_given_tokens_and_every_sampling_parameter(monkeypatch, tmp_path):
    engine = FakeSGLang()
    monkeypatch.setitem(sys.modules, "sglang", engine)
    answers = found(SGLang(str(tmp_path)), [Request.raw("a", DRAWN), Request.raw("a b", GREEDY)])
    assert answers == {"a": Response("1", True, 1, 3, "x"), "a b": Response("2", True, 2, 3, "x")}
    both = {"repetition_penalty": 1.0}
    drawn = both | {
        "sampling_seed": 7,
        "max_new_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "stop": ["x"],
    }
    greedy = both | {"max_new_tokens": 8, "temperature": 0.0, "top_p": 1.0, "top_k": -1, "stop": []}
    assert engine.given == [
        drawn | {"repetition_penalty": 1.0, "sampling_seed": 7},
        greedy | {"repetition_penalty": 1.0},
    ]


def test_a_prompt_that_does_not_fit_ends_the_run_or_counts_as_answered_by_nothing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "vllm", FakeVllm())
    requests = [Request.raw("a " * 13, GREEDY), Request.raw("a " * 12, GREEDY)]
    with pytest.raises(EvalError, match="a prompt of 13 tokens and 8 new ones, expected at most the model's 20"):
        found(Vllm(str(tmp_path)), requests)
    answers = found(Vllm(str(tmp_path), empty_if_too_long=True), requests)
    assert answers == {"a " * 13: Response.unasked(13), "a " * 12: Response("12", True, 12, 3)}
