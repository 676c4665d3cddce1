"""Documents and questions in the layouts of HotpotQA and SQuAD, and the samples that are drawn from them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.memory.documents import Pool, Question, context_of, drawn, read_hotpotqa, read_squad, shuffled
from agentmerge.eval.memory.samples import by_count, questions_of, ready_items

if TYPE_CHECKING:
    from pathlib import Path

HOTPOTQA = [
    {"question": "Who?", "answer": "Ada", "context": [["B", ["One.", " Two."]], ["A", ["Three."]]]},
    {"question": "Where?", "answer": "Rome", "context": [["A", ["Three."]], ["C", ["Four."]]]},
]
SQUAD = {
    "data": [
        {
            "paragraphs": [
                {
                    "context": "second",
                    "qas": [
                        {"question": "q1", "is_impossible": False, "answers": [{"text": "x"}, {"text": "y"}]},
                        {"question": "q2", "is_impossible": True, "answers": []},
                    ],
                },
                {"context": "first", "qas": []},
                {"context": "second", "qas": []},
            ]
        },
        {"paragraphs": [{"context": "third", "qas": []}]},
    ]
}
POOL = Pool(tuple(f"text {place}" for place in range(40)), (Question("Who?", ("Ada",), (7, 3), (20, 21, 22)),))


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(HOTPOTQA))
    return path


def test_hotpotqa_is_read_as_sorted_documents_each_once(dev: Path) -> None:
    pool = read_hotpotqa(dev)
    assert pool.documents == ("A\nThree.", "B\nOne. Two.", "C\nFour.")
    assert pool.questions == (Question("Who?", ("Ada",), (1, 0)), Question("Where?", ("Rome",), (0, 2)))


def test_squad_is_read_without_what_cant_be_answered(dev: Path) -> None:
    dev.write_text(json.dumps(SQUAD))
    pool = read_squad(dev)
    assert pool.documents == ("first", "second", "third")
    assert pool.questions == (Question("q1", ("x", "y"), (1,), (0,)),)


@pytest.mark.parametrize("read", [read_hotpotqa, read_squad])
@pytest.mark.parametrize("content", ["[", '[{"question": "q"}]', "[1]", '{"data": [{}]}', "3"])
def test_another_layout_is_told_with_the_one_that_is_expected(dev: Path, read: object, content: str) -> None:
    dev.write_text(content)
    with pytest.raises(EvalError, match=r"dev\.json: can't be used") as caught:
        read(dev)  # type: ignore[operator]
    assert '"question"' in caught.value.problems[0].expected


@pytest.mark.parametrize("count", [2, 4, 5, 6, 30, 40])
def test_a_sample_has_its_own_documents_then_its_articles_then_any(count: int) -> None:
    places = drawn(POOL, POOL.questions[0], count, "a")
    assert len(places) == len(set(places)) == count
    assert places[:2] == [7, 3]
    near = {20, 21, 22} & set(places)
    assert len(near) == min(3, count - 2)
    assert drawn(POOL, POOL.questions[0], count, "a") == places
    assert count in (2, 5, 40) or drawn(POOL, POOL.questions[0], count, "b") != places


def test_documents_are_numbered_in_an_order_of_their_own() -> None:
    assert context_of(["x", "y"]) == "Document 1:\nx\n\nDocument 2:\ny"
    assert shuffled([5, 6, 7, 8]) == [7, 5, 8, 6] == shuffled((5, 6, 7, 8))  # random.Random(4)


def test_a_sample_of_more_documents_than_there_are_is_refused() -> None:
    items = by_count(POOL, "hotpotqa-40", [0], 40, 0)
    assert sorted(items[0].data["documents"]) == list(range(40))
    assert items[0].data["problem"] == "Who?"
    with pytest.raises(EvalError, match="hotpotqa-41: there are 40 documents"):
        by_count(POOL, "hotpotqa-41", [0], 41, 0)


def test_memagents_own_samples_are_taken_as_they_are(tmp_path: Path, dev: Path) -> None:
    path = tmp_path / "eval_2.json"
    rows = [
        {"context": " some text ", "input": " Who? ", "answers": ["Ada"], "index": 0},
        {"context": [2, 0], "input": "Where?", "outputs": ["Rome"], "index": 1},
    ]
    path.write_text(json.dumps(rows))
    pool = read_hotpotqa(dev)
    items = ready_items(path, "hotpotqa-2", pool)
    assert items[0].data == {"problem": "Who?", "answers": ["Ada"], "context": "some text"}
    assert items[1].data == {"problem": "Where?", "answers": ["Rome"], "documents": [2, 0]}
    with pytest.raises(EvalError, match="gives its documents by number"):
        ready_items(path, "hotpotqa-2", None)


def test_the_questions_of_memagents_samples_are_known_again(tmp_path: Path, dev: Path) -> None:
    path = tmp_path / "eval_2.json"
    path.write_text(json.dumps([{"context": "", "input": "Where?", "answers": ["Rome"], "index": 1}]))
    pool = read_hotpotqa(dev)
    assert questions_of(path, pool) == [1]
    path.write_text(json.dumps([{"context": "", "input": "Where?", "answers": ["Rome"], "index": 0}]))
    assert questions_of(path, pool) == []
    path.write_text(json.dumps([{"context": "", "input": "Where?", "answers": ["Rome"]}]))
    assert questions_of(path, pool) == []
