"""Nothing is asked twice, whatever happens in between, and scoring needs no model."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agentmerge.errors import EvalError, OutputError, Problem
from agentmerge.eval.conversations import converse_all
from agentmerge.eval.generators.replay import Replay, Scripted
from agentmerge.eval.record import locked
from agentmerge.eval.request import Request, Response, Sampling
from agentmerge.eval.results import load_results
from agentmerge.eval.run import Job, evaluate
from agentmerge.eval.suite import Cell, Column, DataFile, Item, SampledSettings, Suite, limited

if TYPE_CHECKING:
    from pathlib import Path

GREEDY = Sampling(max_tokens=8)


class Counting(Suite):
    """Turn by turn a model is told a number and says the next; as many turns as the item says, two samples at last."""

    name = "counting"
    domain = "own"
    settings_type = SampledSettings

    def requires(self):
        return []

    def items(self):
        return [Item(str(n), "even" if n % 2 == 0 else "odd", n) for n in range(4)]

    def converse(self, item):
        said = 0
        for _ in range(item.data):
            (response,) = yield [Request.raw(str(said), GREEDY)]
            said = int(response.text or 0)
        last = yield [Request.raw(f"last {said}", GREEDY, sample=i) for i in range(2)]
        return [said, *(response.text for response in last)]

    def score(self, item, output):
        return {"counted": Cell(float(output[0] == item.data))}

    @property
    def columns(self):
        return (Column("counted", "counted", "counted"), Column("odd", "counted", "odd", ("odd",)))

    def data_files(self):
        return [DataFile("none", "made here", "0" * 64, 4)]


def suite() -> Counting:
    return Counting(SampledSettings())


class Model:
    """Says the next number, notes what it was asked, and breaks after so many answers."""

    def __init__(self, breaks_after: int = 1000) -> None:
        self.asked: list[Request] = []
        self.breaks_after = breaks_after
        self.identity = {"kind": "test", "name": "model"}

    def generate(self, requests, done):
        for request in requests:
            if len(self.asked) == self.breaks_after:
                raise KeyboardInterrupt
            self.asked.append(request)
            text = request.prompt if request.prompt.startswith("last") else str(int(request.prompt) + 1)
            done(request, Response(text, finished=True, prompt_tokens=1, tokens=2))

    def count_tokens(self, text):
        return None


def test_conversations_step_together_and_ask_the_same_once(tmp_path: Path):
    model = Model()
    record = evaluate("m", [Job(suite())], model, tmp_path / "out")
    facts = record.suites["counting"]
    asked = [(request.prompt, request.sample) for request in model.asked]
    assert asked == [("last 0", 0), ("last 0", 1), ("0", 0), ("last 1", 0), ("last 1", 1), ("1", 0), ("last 2", 0),
                     ("last 2", 1), ("2", 0), ("last 3", 0), ("last 3", 1)]  # fmt: skip
    assert (facts.items, facts.requests, facts.tokens.prompt, facts.tokens.generated) == (4, 11, 11, 22)
    assert (facts.columns["counted"].n, facts.columns["counted"].mean, facts.columns["odd"].n) == (4, 1.0, 2)
    outputs = [json.loads(line) for line in (tmp_path / "out/counting/outputs.jsonl").read_text().splitlines()]
    assert outputs[2] == {"suite": "counting", "item": "2", "group": "even", "output": [2, "last 2", "last 2"]}


@pytest.mark.parametrize("breaks_after", range(11))
def test_a_run_that_broke_anywhere_goes_on_where_it_was(tmp_path: Path, breaks_after: int):
    first, second = Model(breaks_after), Model()
    with pytest.raises(KeyboardInterrupt):
        evaluate("m", [Job(suite())], first, tmp_path)
    with (tmp_path / "counting/responses.jsonl").open("ab") as file:
        file.write(b'{"key": "torn by a kil')
    record = evaluate("m", [Job(suite())], second, tmp_path)
    assert len(first.asked) + len(second.asked) == 11
    assert not {one.key for one in first.asked} & {one.key for one in second.asked}
    assert record.suites["counting"].columns["counted"].mean == 1


def test_a_damaged_line_is_asked_again(tmp_path: Path):
    evaluate("m", [Job(suite())], Model(), tmp_path)
    file = tmp_path / "counting/responses.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([b"\xff\n", b"[]\n", b'{"key": 1}\n', *lines[1:]]))
    again = Model()
    evaluate("m", [Job(suite())], again, tmp_path)
    assert [one.prompt for one in again.asked] == ["last 0"]


def test_scoring_again_needs_no_model(tmp_path: Path):
    evaluate("m", [Job(suite())], Model(), tmp_path)
    (tmp_path / "counting/scores.jsonl").unlink()
    record = evaluate("m", [Job(suite())], None, tmp_path)
    assert record.model.generator == {"kind": "test", "name": "model"}
    found = load_results(tmp_path)
    assert [(one.item, one.group) for one in found.scores["counting"]][:2] == [("0", "even"), ("1", "odd")]
    assert found.scores["counting"][0].metrics == {"counted": Cell(1.0, 1.0)}


def test_scoring_what_is_not_answered_says_what_is_missing(tmp_path: Path):
    with pytest.raises(EvalError, match="holds no answers"):
        evaluate("m", [Job(suite())], None, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        evaluate("m", [Job(suite())], Model(3), tmp_path)
    with pytest.raises(EvalError, match="no answer is stored for 3 requests, such as 'last 1'"):
        evaluate("m", [Job(suite())], None, tmp_path)


def test_what_did_not_fit_is_asked_again_but_by_scoring_alone(tmp_path: Path):
    class Short(Model):
        def generate(self, requests, done):
            for request in requests:
                if request.prompt == "last 0":
                    self.asked.append(request)
                    done(request, Response.unasked(9))
                else:
                    super().generate([request], done)

    short = Short()
    assert evaluate("m", [Job(suite())], short, tmp_path).suites["counting"].cut_off == 2
    assert evaluate("m", [Job(suite())], None, tmp_path).suites["counting"].cut_off == 2
    lines = (tmp_path / "counting/responses.jsonl").read_text()
    again = Short()
    evaluate("m", [Job(suite())], again, tmp_path)
    assert [one.prompt for one in again.asked] == ["last 0", "last 0"]
    assert (tmp_path / "counting/responses.jsonl").read_text() == lines, "it is not noted twice"
    assert evaluate("m", [Job(suite())], Model(), tmp_path).suites["counting"].cut_off == 0
    assert evaluate("m", [Job(suite())], None, tmp_path).suites["counting"].cut_off == 0


def test_answers_without_text_are_counted_also_where_they_are_stored(tmp_path: Path):
    class Silent(Model):
        def generate(self, requests, done):
            for request in requests:
                if request.prompt.startswith("last"):
                    done(request, Response("", request.sample == 0, 1, 4, aside="reasoning" if request.sample else ""))
                else:
                    super().generate([request], done)

    expected = {"answers": 8, "cut_off": 4, "tokens": 32, "aside": {"reasoning": 4}}
    for model in (Silent(), None):
        facts = evaluate("m", [Job(suite())], model, tmp_path).suites["counting"]
        assert (facts.requests, facts.empty.model_dump()) == (11, expected)
    assert load_results(tmp_path).record.suites["counting"].empty.answers == 8


def test_another_models_answers_are_not_gone_on_with(tmp_path: Path):
    evaluate("m", [Job(suite())], Model(), tmp_path)
    with pytest.raises(OutputError, match="name was 'm', is 'other'"):
        evaluate("other", [Job(suite())], Model(), tmp_path)
    with pytest.raises(OutputError, match="generator's kind was 'test', is 'scripted'"):
        evaluate("m", [Job(suite())], Scripted(lambda request: "1"), tmp_path)


def test_other_weights_in_the_same_folder_are_another_model(tmp_path: Path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"1")
    evaluate(str(folder), [Job(suite())], Model(), tmp_path / "out")
    (folder / "model.safetensors").write_bytes(b"22")
    with pytest.raises(OutputError, match="weights was"):
        evaluate(str(folder), [Job(suite())], Model(), tmp_path / "out")


def test_stored_answers_replay_and_what_they_lack_is_told(tmp_path: Path):
    model = Model()
    evaluate("m", [Job(suite())], model, tmp_path / "one")
    from agentmerge.eval.answers import stored

    answers = stored(tmp_path / "one/counting")
    assert evaluate("m", [Job(suite())], Replay(answers), tmp_path / "two").suites["counting"].requests == 11
    del answers[model.asked[-1].key]
    with pytest.raises(EvalError, match="no answer is stored for 1 requests"):
        evaluate("m", [Job(suite())], Replay(answers), tmp_path / "three")


def test_two_processes_do_not_write_to_one_place(tmp_path: Path):
    from agentmerge.eval.answers import Answers

    with Answers(tmp_path / "counting"), pytest.raises(OutputError, match="another run is writing here"):
        evaluate("m", [Job(suite())], Model(), tmp_path)


@pytest.mark.parametrize("taken", ["", "counting", "counting/responses.jsonl"])
def test_a_place_that_cannot_be_written_is_told(tmp_path: Path, taken: str):
    """A file where a folder should be, or the other way round."""
    place = tmp_path / "out" / taken
    place.parent.mkdir(parents=True, exist_ok=True)
    place.mkdir() if place.suffix else place.write_text("")
    with pytest.raises(OutputError, match="can't be written"):
        evaluate("m", [Job(suite())], Model(), tmp_path / "out")


def test_all_that_is_missing_is_told_at_once_and_nothing_asked(tmp_path: Path):
    class Lacking(Counting):
        name = "lacking"

        def requires(self):
            return [Problem("no data"), Problem("no harness")]

    model = Model()
    with pytest.raises(EvalError) as caught:
        evaluate("m", [Job(suite()), Job(Lacking(SampledSettings()))], model, tmp_path / "out")
    assert str(caught.value) == "no data\nno harness"
    assert not model.asked
    assert not (tmp_path / "out").exists()


def test_suites_of_earlier_commands_stay_in_the_record(tmp_path: Path):
    class Other(Counting):
        name = "other"

    evaluate("m", [Job(suite())], Model(), tmp_path)
    record = evaluate("m", [Job(Other(SampledSettings()), limit=1)], Model(), tmp_path)
    assert list(record.suites) == ["counting", "other"]
    assert record.suites["other"].items == 2  # one of each group


def test_two_suites_at_once_are_both_in_the_record(tmp_path: Path):
    """The second one begins and ends while the first is asked."""

    class Other(Counting):
        name = "other"

    class Slow(Model):
        def generate(self, requests, done):
            if not self.asked:
                evaluate("m", [Job(Other(SampledSettings()))], Model(), tmp_path)
            super().generate(requests, done)

    record = evaluate("m", [Job(suite())], Slow(), tmp_path)
    assert set(record.suites) == {"counting", "other"} == set(load_results(tmp_path).record.suites)


def test_the_record_is_written_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agentmerge.eval.record.PATIENCE", 0.05)
    with locked(tmp_path), pytest.raises(OutputError, match="another run is writing here"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_smaller_limits_items_are_among_a_larger_ones():
    items = [Item(str(n), "ab"[n % 2], n) for n in range(100)]
    few, more = limited(items, 3), limited(items, 7)
    assert [sum(item.group == g for item in few) for g in "ab"] == [3, 3]
    assert set(few) < set(more)
    assert [item.data for item in more] == sorted(item.data for item in more)
    assert limited(items, None) == items
    assert limited(items, 3, seed=1) != few


def test_an_item_that_asks_nothing_has_its_output():
    class Silent(Counting):
        def converse(self, item):
            return item.data
            yield

    assert converse_all(Silent(SampledSettings()), suite().items(), lambda round_: {}) == [0, 1, 2, 3]
