"""ZeroSearch's loop, turn by turn, and a model that finds what it is asked for among twenty paragraphs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge.eval.generators.replay import Scripted
from agentmerge.eval.request import Request, Response, Sampling
from agentmerge.eval.run import Job, evaluate
from agentmerge.eval.search.loop import INVALID, Turn, prompt_of, search_loop, up_to_action
from agentmerge.eval.suite import Given
from agentmerge.eval.suites.search import Search

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


class Overlap:
    """Finds the passages that share most words with the query."""

    def __init__(self, corpus: Path) -> None:
        rows = [json.loads(line) for line in corpus.read_text().splitlines() if line]
        self._passages = [row["text"] for row in rows]

    def search(self, query: str, count: int) -> list[str]:
        words = set(query.lower().split())
        shared = [
            (len(words & set(text.lower().replace(".", "").split())), -n) for n, text in enumerate(self._passages)
        ]
        return [self._passages[-n] for hits, n in sorted(shared, reverse=True)[:count] if hits]


@pytest.fixture
def suite(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Search]:
    monkeypatch.setattr(Search, "_retriever", Overlap(data_dir / "corpus.jsonl"))
    monkeypatch.setattr("agentmerge.eval.search.bm25.find_spec", lambda name: name)

    def make(**settings: Any) -> Search:
        found = Search.make("chat", Given(data_dir), **settings)
        assert isinstance(found, Search)
        return found

    return make


def talk(texts: Sequence[str | Response], turns: int = 5) -> tuple[dict[str, Any], list[list[Turn]], list[str]]:
    """The output of a loop that is told these answers, the turns before each request, and what was searched for."""
    asked: list[list[Turn]] = []
    queries: list[str] = []

    def ask(told: Sequence[Turn]) -> Request:
        asked.append(list(told))
        return Request.raw("x", Sampling(max_tokens=9))

    def search(query: str) -> list[str]:
        queries.append(query)
        return [f"found\n{query}", "more"]

    loop = search_loop(ask, search, turns)
    next(loop)
    for text in texts:
        response = text if isinstance(text, Response) else Response(text, True)
        try:
            loop.send([response])
        except StopIteration as end:
            return end.value, asked, queries
    raise AssertionError("the loop goes on")


def test_a_search_is_answered_with_numbered_passages_a_line_each() -> None:
    output, asked, queries = talk(["<think>t</think> <search> a b </search> tail", "<answer> x </answer>"])
    assert output == {"answer": "x", "searches": ["a b"], "invalid": 0}
    assert queries == ["a b"]
    written, read = asked[1][0]
    assert written == "<think>t</think> <search> a b </search>"
    assert read == "\n\n<information>Doc 1: found a b\nDoc 2: more</information>\n\n"


def test_a_turn_without_a_tag_is_told_so_and_counts_as_one() -> None:
    output, asked, _ = talk(["hm", "<answer", "<search>q</search>", "so", "x"], turns=4)
    assert output == {"answer": None, "searches": ["q"], "invalid": 4}
    assert asked[1][0] == Turn("hm", INVALID)
    assert len(asked) == 5


def test_after_the_last_search_only_an_answer_counts() -> None:
    output, asked, queries = talk([f"<search>{n}</search>" for n in range(6)])
    assert output == {"answer": None, "searches": list("01234"), "invalid": 0}
    assert queries == list("01234")
    assert len(asked) == 6
    output, *_ = talk(["<search>0</search>", "<answer>x</answer>"], turns=1)
    assert output["answer"] == "x"
    output, asked, _ = talk(["<answer>x</answer>"], turns=0)
    assert output["answer"] == "x"


@pytest.mark.parametrize(
    ("response", "written"),
    [
        (Response("a <search> q", True, stop="</search>"), "a <search> q</search>"),
        (Response("a <answer> x", True), "a <answer> x</answer>"),
        (Response("a <answer> x", False), "a <answer> x"),
        (Response("<search> q", False), "<search> q"),
        (Response("nothing", True), "nothing"),
        (Response("<search>q</search> and <answer>x</answer>", True), "<search>q</search>"),
        (Response("<answer>x</answer> and more", True), "<answer>x</answer>"),
        (Response("<answer>x</answer> <search>q</search> z", True), "<answer>x</answer> <search>q</search>"),
        (Response("", False), ""),
    ],
)
def test_a_turn_is_cut_behind_its_action_and_gets_back_the_tag_it_stopped_at(response: Response, written: str) -> None:
    assert up_to_action(response) == written


def test_the_first_tag_of_a_turn_counts() -> None:
    output, *_ = talk(["<answer>x</answer> <search>q</search>"])
    assert output["answer"] == "x"
    output, _, queries = talk(["<search>q</search> <answer>y</answer>", "<answer>z</answer>"])
    assert (output["answer"], queries) == ("z", ["q"])


def test_every_question_ends_with_a_question_mark() -> None:
    assert prompt_of("who").endswith("<answer> Beijing </answer>. Question: who?\n")
    assert prompt_of("who?") == prompt_of("who")


def test_a_model_that_searches_is_right_and_one_that_guesses_is_not(
    suite: Callable[..., Search], model: Callable[[Request], str], tmp_path: Path
) -> None:
    found = evaluate("m", [Job(suite())], Scripted(model), tmp_path / "out").suites["search"]
    means = {name: column.mean for name, column in found.columns.items()}
    assert means == {"nq": 1, "nq-em": 1, "2wikimultihopqa": 1, "2wikimultihopqa-em": 0}  # "It is Mayor 4"
    assert found.requests == 3 * 2 + 2 * 3
    guessed = evaluate("m", [Job(suite())], Scripted(lambda _: "<answer>Rome</answer>"), tmp_path / "other")
    assert {column.mean for column in guessed.suites["search"].columns.values()} == {0}
    lost = evaluate("m", [Job(suite(turns=1))], Scripted(model), tmp_path / "lost").suites["search"].columns
    assert (lost["nq"].mean, lost["2wikimultihopqa"].mean) == (1, 0)


def test_a_killed_run_goes_on_from_the_turn_it_was_in(
    suite: Callable[..., Search], model: Callable[[Request], str], tmp_path: Path
) -> None:
    asked: list[str] = []

    def dying(request: Request) -> str:
        if len(asked) == 7:
            raise KeyboardInterrupt
        asked.append(request.key)
        return model(request)

    with pytest.raises(KeyboardInterrupt):
        evaluate("m", [Job(suite())], Scripted(dying), tmp_path / "out")
    later: list[str] = []

    def going(request: Request) -> str:
        later.append(request.key)
        return model(request)

    found = evaluate("m", [Job(suite())], Scripted(going), tmp_path / "out").suites["search"]
    assert len({*asked, *later}) == len(asked) + len(later) == found.requests == 12
    assert found.columns["nq"].mean == 1


def test_in_a_chat_passages_come_as_messages_of_the_user(suite: Callable[..., Search]) -> None:
    chat = suite(sets=["nq"], passages=2)
    loop = chat.converse(chat.items()[0])
    (first,) = next(loop)
    (second,) = loop.send([Response("<search>river of Corvwick", True)])
    assert [message.role for message in first.messages or ()] == ["user"]
    assert [message.role for message in second.messages or ()] == ["user", "assistant", "user"]
    assert (second.messages or ())[1].content == "<search>river of Corvwick</search>"
    assert (second.messages or ())[2].content.count("Doc ") == 2
    assert second.sampling.stop == ("</search>", "</answer>")


def test_by_default_the_model_goes_on_with_its_own_turn(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Search, "_retriever", Overlap(data_dir / "corpus.jsonl"))
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.json").write_text("{}")
    chat = Search.make("paper", Given(data_dir, str(model)), sets=["nq"], passages=1)
    base = chat.items()[0]
    (request,) = next(chat.converse(base))
    assert request.prompt == prompt_of("which river is Corvwick on")  # no chat template
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<me>{% endif %}"
    )
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    suite = Search.make("paper", Given(data_dir, str(model)), sets=["nq"], passages=1)
    loop = suite.converse(base)
    (first,) = next(loop)
    (second,) = loop.send([Response("<search>river of Corvwick", True, stop="</search>")])
    assert first.prompt == f"<user>{prompt_of('which river is Corvwick on')}<me>"
    told = "Doc 1: Corvwick is a small town on the river Kciwvrocwater. The mayor of Corvwick is Mayor 9."
    read = f"\n\n<information>{told}</information>\n\n"
    assert second.prompt == f"{first.prompt}<search>river of Corvwick</search>{read}"
