"""SmolLM2-135M-Instruct reads a context in four sections, and answers two questions with searches in between."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge.eval.generators.hf import Transformers
from agentmerge.eval.run import Job, evaluate
from agentmerge.eval.suite import Given, Suite
from agentmerge.eval.suites.memory import Memory
from agentmerge.eval.suites.search import Search

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agentmerge.eval.record import SuiteFacts
    from agentmerge.eval.request import Request, Response

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    rng = random.Random(0)
    towns = [f"{begin}{end}" for begin in ("Arle", "Bexl", "Corv") for end in ("ane", "ham", "ton", "wick")]
    texts = [
        f"The town of {town} lies on a river. It has a bridge of stone. Its code is {rng.randrange(1000, 9999)}. "
        f"In {rng.randrange(1700, 1999)} a king built a castle and a mill there, and a market was held on Mondays."
        for town in towns
    ]
    hotpotqa = [
        {
            "question": f"What is the code of {town}?",
            "answer": text.split("code is ")[1][:4],
            "context": [[town, [text]]],
        }
        for town, text in zip(towns, texts, strict=True)
    ]
    (folder / "hotpot_dev_distractor_v1.json").write_text(json.dumps(hotpotqa))
    (folder / "corpus.jsonl").write_text("\n".join(json.dumps({"contents": text}) for text in texts))
    rows = [{"question": row["question"], "golden_answers": [row["answer"]]} for row in hotpotqa[:2]]
    (folder / "nq.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


class Dying(Transformers):
    """Is killed when it has answered so many."""

    def generate(self, requests: Sequence[Request], done: Callable[[Request, Response], None]) -> None:
        """Until the third answer."""
        if requests[0].text.count("<section>\n") and "No previous memory" not in requests[0].text:
            raise KeyboardInterrupt
        super().generate(requests, done)


def ran(suite: Suite, model: Transformers, out: Path) -> SuiteFacts:
    return evaluate(model.folder, [Job(suite)], model, out).suites[suite.name]


def test_a_context_of_four_sections_is_read_and_a_killed_run_goes_on(
    smollm2: Path, data_dir: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"hotpotqa": [12], "squad": [], "samples": 1, "max_tokens": 16, "temperature": 0}
    suite = Memory.make("paper", Given(data_dir, str(smollm2)), section=210, **settings)
    with pytest.raises(KeyboardInterrupt):
        ran(suite, Dying(str(smollm2), threads=1), tmp_path / "out")
    found = ran(suite, Transformers(str(smollm2), threads=1), tmp_path / "out")
    lines = (tmp_path / "out" / "memory" / "responses.jsonl").read_text().splitlines()
    assert found.requests == len(lines) == 5
    assert len({json.loads(line)["key"] for line in lines}) == 5
    prompts = [json.loads(line)["response"]["prompt_tokens"] for line in lines]
    assert all(210 + 100 < tokens < 210 + 180 for tokens in prompts[:3])
    assert found.columns["hotpotqa-12"].n == 1
    assert found.data[-1].name == "tokenizer.json"


def test_two_questions_are_answered_with_searches(smollm2: Path, data_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="searching a local corpus needs bm25s: pip install bm25s")
    settings: dict[str, Any] = {"sets": ["nq"], "max_tokens": 24, "turns": 2, "passages": 2, "temperature": 0}
    found = ran(
        Search.make("paper", Given(data_dir, str(smollm2)), **settings), Transformers(str(smollm2), threads=1), tmp_path
    )
    outputs = [json.loads(line) for line in (tmp_path / "search" / "outputs.jsonl").read_text().splitlines()]
    assert len(outputs) == found.items == 2
    assert 2 <= found.requests <= 2 * 3
    assert {name: column.n for name, column in found.columns.items()} == {"nq": 2, "nq-em": 2}
    requests = [
        json.loads(line)["request"] for line in (tmp_path / "search" / "responses.jsonl").read_text().splitlines()
    ]
    assert all(request["prompt"].startswith("<|im_start|>system\n") for request in requests)
