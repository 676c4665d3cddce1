"""Questions are read from the layouts that are around, and what is missing is told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.search.questions import Asked, path_of, problems, read_questions
from agentmerge.eval.search.scoring import em_zerosearch, exact_match
from agentmerge.eval.suite import Given
from agentmerge.eval.suites.search import Search

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "fields",
    [
        {"golden_answers": ["x", "y"]},
        {"answers": ["x", "y"]},
        {"answer": ["x", "y"]},
        {"golden_answers": None, "reward_model": {"ground_truth": {"target": ["x", "y"]}}},
        {"reward_model": {"ground_truth": ["x", "y"]}},
        {"data_source": "nq", "golden_answers": ["x", "y"]},
    ],
)
def test_right_answers_go_by_many_names(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = tmp_path / "nq.jsonl"
    path.write_text(json.dumps({"id": "a", "question": " who? ", **fields}))
    assert read_questions(path, "nq") == [Asked("a", "who?", ("x", "y"))]


def test_a_single_right_answer_is_one(tmp_path: Path) -> None:
    path = tmp_path / "nq.jsonl"
    path.write_text('{"question": "who?", "answer": "x"}')
    assert read_questions(path, "nq") == [Asked("0", "who?", ("x",))]


def test_a_file_of_many_sets_gives_the_wanted_one(tmp_path: Path) -> None:
    path = tmp_path / "zerosearch_test.jsonl"
    rows = [
        {"question": f"q{n}", "answers": ["x"], "data_source": name} for n, name in enumerate(("nq", "popqa", "nq"))
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert path_of(tmp_path, "nq") == path
    assert [asked.text for asked in read_questions(path, "nq")] == ["q0", "q2"]
    with pytest.raises(EvalError, match="no question of 'triviaqa', but of nq, popqa"):
        read_questions(path, "triviaqa")
    own = tmp_path / "nq.jsonl"
    own.write_text(json.dumps(rows[0]))
    assert path_of(tmp_path, "nq") == own


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "3",
        "{}",
        '{"question": "q"}',
        '{"question": "", "answers": ["x"]}',
        '{"question": "q", "answers": []}',
        '{"question": "q", "answers": [1]}',
    ],
)
def test_another_layout_is_told_with_the_one_that_is_expected(tmp_path: Path, line: str) -> None:
    path = tmp_path / "nq.jsonl"
    path.write_text(line)
    with pytest.raises(EvalError, match=r"nq\.jsonl") as caught:
        read_questions(path, "nq")
    assert "golden_answers" in str(caught.value)


def test_parquet_without_its_library_says_what_to_convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "zerosearch_test.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr("agentmerge.eval.search.questions.find_spec", lambda name: None)
    (problem,) = problems(tmp_path, "nq")
    assert "pip install pyarrow" in problem.todo
    assert (
        'pandas.read_parquet("zerosearch_test.parquet").to_json("zerosearch_test.jsonl", orient="records", lines=True)'
        in problem.todo
    )


@pytest.mark.slow
def test_parquet_is_read_as_zerosearch_has_it(tmp_path: Path) -> None:
    pyarrow: Any = pytest.importorskip("pyarrow", reason="datasets, of the extra eval, brings it")
    parquet: Any = pytest.importorskip("pyarrow.parquet", reason="datasets, of the extra eval, brings it")
    rows = [
        {
            "id": f"t{n}",
            "question": f"q{n}",
            "golden_answers": ["x", "y"],
            "data_source": name,
            "reward_model": {"style": "rule", "ground_truth": {"target": ["x"]}},
        }
        for n, name in enumerate(("nq", "2wikimultihopqa", "nq"))
    ]
    path = tmp_path / "zerosearch_test.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert problems(tmp_path, "nq") == []
    assert read_questions(path, "nq") == [Asked("t0", "q0", ("x", "y")), Asked("t2", "q2", ("x", "y"))]
    parquet.write_table(pyarrow.Table.from_pylist(rows).drop(["golden_answers"]), path)
    assert read_questions(path, "2wikimultihopqa") == [Asked("t1", "q1", ("x",))]
    path.write_bytes(b"PAR1")
    with pytest.raises(EvalError, match=r"zerosearch_test\.parquet: can't be used"):
        read_questions(path, "nq")


def test_everything_that_is_missing_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentmerge.eval.search.bm25.find_spec", lambda name: None)
    (tmp_path / "tokenizer.json").write_text("{}")
    found = [problem.found for problem in Search.make("chat", Given(tmp_path)).requires()]
    assert len(found) == 4
    assert "no questions of 'nq'" in found[0]
    assert "no questions of '2wikimultihopqa'" in found[1]
    assert found[2].startswith("search: no corpus")
    assert found[3] == "search: searching a local corpus needs bm25s"
    server = Search.make("chat", Given(tmp_path), endpoint="http://127.0.0.1:1").requires()
    assert len(server) == 2
    assert [problem.found for problem in Search.make("chat").requires()] == ["search: no --data-dir is given"]


@pytest.mark.parametrize(
    ("answer", "right", "zerosearch", "exact"),
    [
        ("Paris", ["paris"], 1, 1),
        ("the Paris.", ["Rome", "Paris"], 1, 1),
        ("Paris, France", ["Paris"], 1, 0),  # what ZeroSearch calls exact
        ("unknown", ["No"], 1, 0),  # characters, not words
        ("Rome", ["The"], 1, 0),  # a right answer that normalises to nothing is in everything
        ("", [""], 1, 0),
        ("Paris", ["Paris France"], 0, 0),
        (None, ["Beijing"], 0, 0),  # the prompt's example is no answer
    ],
)
def test_exact_match_by_hand(answer: str | None, right: list[str], zerosearch: int, exact: int) -> None:
    assert em_zerosearch(answer, right) == zerosearch
    assert exact_match(answer, right) == exact


def test_the_score_of_choice_comes_first() -> None:
    first = {preset: Search.make(preset).columns[0].metric for preset in ("paper", "zerosearch", "exact")}
    assert first == {"paper": "em_zerosearch", "zerosearch": "em_zerosearch", "exact": "em"}
    assert [column.name for column in Search.make("exact").columns] == [
        "nq",
        "nq-em_zerosearch",
        "2wikimultihopqa",
        "2wikimultihopqa-em_zerosearch",
    ]
