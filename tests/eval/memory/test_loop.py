"""The loop hands on nothing but the memory, and a model that reads each section finds every answer."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.fetch import fetch
from agentmerge.eval.generators.replay import Scripted
from agentmerge.eval.memory.loop import recurrent
from agentmerge.eval.request import Request, Response, Sampling
from agentmerge.eval.run import Job, evaluate
from agentmerge.eval.suite import Given, Suite
from agentmerge.eval.suites.memory import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agentmerge.eval.data import Hub

SAMPLING = Sampling(max_tokens=9)
FEW: dict[str, Any] = {"hotpotqa": [40], "squad": [1200], "samples": 5, "section": 500}


def part(text: str, tag: str) -> str:
    found = re.search(rf"<{tag}>\s*(.*?)\s*</{tag}>", text, re.DOTALL)
    return found[1] if found else ""


def reader(request: Request) -> str:
    """Notes the code that the problem asks for where a section tells it, and knows nothing but its notes."""
    text = request.text
    asked = re.search(r"code of (town\d+)\?", text)
    assert asked
    if "<section>" not in text:
        return f"Therefore, the answer is {part(text, 'memory')}."
    seen = re.search(rf"The code of {asked[1]} is (\d+)\.", part(text, "section"))
    return f"<think>hm</think> {seen[1]}" if seen else part(text, "memory")


def forgetful(request: Request) -> str:
    """The same, but a section without the code empties its notes."""
    return reader(request) if re.search(r"<think>|the answer is", reader(request)) else "nothing"


@pytest.fixture
def suite(data_dir: Path, words: object, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Suite]:
    monkeypatch.setattr("agentmerge.eval.suites.memory.TextTokenizer", type(words))
    return lambda preset="paper", **settings: Memory.make(preset, Given(data_dir, "any"), **{**FEW, **settings})


def test_each_section_is_a_fresh_message_with_the_memory_so_far() -> None:
    talk = recurrent("Who?", ["one", "two"], SAMPLING, "sentence")
    asked = [next(talk)]
    asked.append(talk.send([Response("<think>a</think>\nnoted", True)]))
    asked.append(talk.send([Response("all {noted}", False)]))
    with pytest.raises(StopIteration) as end:
        talk.send([Response("Therefore, the answer is x", True)])
    assert end.value.value == {"response": "Therefore, the answer is x"}
    texts = [request.text for (request,) in asked]
    assert [part(text, "memory") for text in texts] == ["No previous memory", "noted", "all {noted}"]
    assert [part(text, "section") for text in texts] == ["one", "two", ""]
    assert all(len(request.messages or ()) == 1 and request.sampling == SAMPLING for (request,) in asked)
    assert "<problem> \nWho?\n</problem>" in texts[0]
    assert 'as follows "Therefore, the answer is (insert answer here)".' in texts[2]
    assert texts[0].endswith("Updated memory:\n")
    assert texts[2].endswith("Your answer:\n")


def test_the_boxed_variant_differs_in_its_last_message_alone() -> None:
    plain, boxed = (recurrent("Who?", ["one"], SAMPLING, ending) for ending in ("sentence", "boxed"))
    assert next(plain) == next(boxed)
    (last,) = boxed.send([Response("m", True)])
    assert "based on the previous memory and put the answer in \\boxed{}.\n" in last.text


def test_a_model_that_reads_the_right_section_is_right(suite: Callable[..., Suite], tmp_path: Path) -> None:
    record = evaluate("m", [Job(suite())], Scripted(reader), tmp_path / "out")
    columns = record.suites["memory"].columns
    assert {name: column.mean for name, column in columns.items()} == {"hotpotqa-40": 1.0, "squad-1200": 1.0}
    assert {column.label for column in columns.values()} == {"HotpotQA 40 documents", "SQuAD 1200 tokens"}
    assert record.suites["memory"].requests > 5 * (4 + 3)


def test_one_that_forgets_is_right_only_where_the_last_section_tells(
    suite: Callable[..., Suite], tmp_path: Path
) -> None:
    record = evaluate("m", [Job(suite())], Scripted(forgetful), tmp_path / "out")
    assert all((column.mean or 0) < 1 for column in record.suites["memory"].columns.values())


def test_every_sample_of_all_lengths_is_stepped_together(suite: Callable[..., Suite], tmp_path: Path) -> None:
    batches: list[int] = []

    class Counting(Scripted):
        def generate(self, requests: Sequence[Request], done: Callable[[Request, Response], None]) -> None:
            batches.append(len(requests))
            super().generate(requests, done)

    evaluate("m", [Job(suite())], Counting(reader), tmp_path / "out")
    assert batches[0] == 10
    assert len(batches) == max(map(sections, map(suite().converse, suite().items()))) + 1


def sections(talk: Any) -> int:
    """How often a conversation asks before its last message."""
    count, asked = 0, next(talk)
    while "<section>" in asked[0].text:
        count, asked = count + 1, talk.send([Response("m", True)])
    return count


def test_a_run_killed_midway_asks_nothing_twice(suite: Callable[..., Suite], tmp_path: Path) -> None:
    one = suite(hotpotqa=[45], squad=[], samples=1, section=1200)
    asked: list[str] = []

    def dying(request: Request) -> str:
        if len(asked) == 2:
            raise KeyboardInterrupt
        asked.append(request.key)
        return reader(request)

    with pytest.raises(KeyboardInterrupt):
        evaluate("m", [Job(one)], Scripted(dying), tmp_path / "out")
    answers = tmp_path / "out" / "memory" / "responses.jsonl"
    with answers.open("ab") as file:
        file.write(answers.read_bytes()[:50])  # what a kill leaves of a line
    later: list[str] = []

    def going(request: Request) -> str:
        later.append(request.key)
        return reader(request)

    record = evaluate("m", [Job(one)], Scripted(going), tmp_path / "out")
    assert sections(one.converse(one.items()[0])) == 4
    assert len(asked) == 2
    assert len(later) == 3
    assert not {*asked} & {*later}
    assert record.suites["memory"].columns["hotpotqa-45"].mean == 1
    assert record.suites["memory"].requests == 5


def test_direct_reading_is_one_message_whose_middle_is_cut(suite: Callable[..., Suite]) -> None:
    whole, cut = suite("direct", context=None), suite("direct", context=100)
    item = whole.items()[0]
    (request,) = next(whole.converse(item))
    (short,) = next(cut.converse(item))
    assert request.text.startswith(
        "Please read the following text and answer the question below.\n\n<text>\nDocument 1"
    )
    assert request.text.endswith('"Therefore, the answer is (insert answer here)".')
    assert request.sampling.max_tokens == 10_000
    assert len(short.text.split()) == 100
    assert short.text.startswith(request.text[:200])
    assert short.text.endswith(request.text[-200:])
    assert suite("direct").settings.context == 120_000


def test_a_context_that_is_cut_loses_its_middle_before_it_is_read(suite: Callable[..., Suite]) -> None:
    cut = suite(context=1000)
    talk = cut.converse(cut.items()[0])
    first = part(next(talk)[0].text, "section")
    second = part(talk.send([Response("m", True)])[0].text, "section")
    assert len(first.split()) + len(second.split()) == 1000
    assert "<section>" not in talk.send([Response("m", True)])[0].text


def test_the_same_questions_are_asked_at_every_length(suite: Callable[..., Suite]) -> None:
    items = suite(hotpotqa=[30, 40], squad=[]).items()
    asked = {
        group: [item.data["problem"] for item in items if item.group == group]
        for group in ("hotpotqa-30", "hotpotqa-40")
    }
    assert asked["hotpotqa-30"] == asked["hotpotqa-40"]
    assert len(asked["hotpotqa-30"]) == 5
    assert suite(data_seed=1).items() != suite().items() == suite().items()
    assert suite().items()[-1].data["problem"].startswith("Answer the question based on the given documents. What")


def test_scores_come_in_both_ways(suite: Callable[..., Suite]) -> None:
    memory, strict = suite(), suite("strict")
    item = memory.items()[0]
    wrong = memory.score(item, {"response": "Therefore, the answer is the"})
    assert {name: cell.value for name, cell in wrong.items()} == {
        "sub_em_memagent": 1,
        "sub_em_strict": 0,
        "exact_match": 0,
    }
    assert "sub_em_memagent" not in memory.score(item, {"response": ""})
    assert {column.metric for column in memory.columns} == {"sub_em_memagent"}
    assert {column.metric for column in strict.columns} == {"sub_em_strict"}


def test_what_is_missing_is_told_with_its_origin_and_layout(suite: Callable[..., Suite], data_dir: Path) -> None:
    (data_dir / "dev-v2.0.json").unlink()
    (problem,) = suite().requires()
    assert "dev-v2.0.json is not in" in problem.found
    assert '"is_impossible"' in problem.expected
    assert "rajpurkar.github.io" in problem.todo
    assert "eval_qa_1_1200.json" in problem.todo
    assert suite(squad=[]).requires() == []
    (folder,) = Memory.make("paper", Given(None, "any")).requires()
    assert folder.found == "memory: no --data-dir is given"
    with pytest.raises(EvalError, match=r"memory\.sections: unknown field"):
        suite(sections=3)


def test_the_record_names_what_was_read(suite: Callable[..., Suite], data_dir: Path) -> None:
    ready = data_dir / "eval_40.json"
    ready.write_text(
        '[{"context": "The code of town1 is 7919.", "input": "What is the code of town1?", "answers": ["7919"]}]'
    )
    memory = suite()
    assert [(file.name, file.items) for file in memory.data_files()] == [
        ("eval_40.json", 1),
        ("dev-v2.0.json", 60),
        ("words", 1),
    ]
    assert all(len(file.sha256) == 64 for file in memory.data_files()[:2])
    assert [item.group for item in memory.items()] == ["hotpotqa-40"] + ["squad-1200"] * 5


def test_memagents_own_samples_are_fetched_and_fix_the_questions(
    suite: Callable[..., Suite], data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    rows = [
        {"context": "x", "input": f"What is the code of town{place}?", "answers": ["0"], "index": place}
        for place in (9, 4, 30)
    ]

    def file(hub: Hub) -> Path:
        asked.append(f"{hub.repository} {hub.file}")
        (tmp_path / "hub.json").write_text(json.dumps(rows, indent=4))
        return tmp_path / "hub.json"

    monkeypatch.setattr("agentmerge.eval.fetch._file", file)
    found = fetch("memory", Given(tmp_path / "fetched"))
    assert [one.name for one in found] == [f"eval_{size}.json" for size in (50, 100, 200, 400, 800, 1600, 3200, 6400)]
    assert asked[0] == "BytedTsinghua-SIA/hotpotqa eval_50.json"
    (data_dir / "eval_50.json").write_bytes((tmp_path / "fetched" / "eval_50.json").read_bytes())
    items = suite(hotpotqa=[50, 40], squad=[], samples=2).items()
    assert [item.id for item in items] == [*(f"hotpotqa-50-{n}" for n in range(3)), "hotpotqa-40-9", "hotpotqa-40-4"]
