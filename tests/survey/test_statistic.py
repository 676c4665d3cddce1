"""Questions are their own keys, and a survey keeps a total and, where wanted, an answer per tensor."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from agentmerge.survey.answers import Answers
from agentmerge.survey.copied import Copied
from agentmerge.survey.integrity import Integrity
from agentmerge.survey.overlap import Overlap
from agentmerge.survey.rounding import Rounding
from agentmerge.survey.statistic import Statistic, Survey
from agentmerge.survey.sums import TreeSums, TreeSumsOf, tree_sums
from agentmerge.tensors import Block, Stack, TensorSpec
from agentmerge.testing import random_stack


class Maximum(Answers[float]):
    """Answers are the largest of several numbers."""

    def combine(self, left: float, right: float) -> float:
        return max(left, right)

    def encode(self, answer: float) -> float:
        return answer

    def decode(self, data: Any) -> float:
        return float(data)


@dataclass(frozen=True)
class Largest(Statistic[float]):
    """The largest number of the base; a question that a plug-in could ask."""

    power: int = 1
    per_tensor: ClassVar[bool] = True
    answers: ClassVar[Answers[float]] = Maximum()

    def observe(self, stack: Stack) -> float:
        return float(np.abs(stack.base.astype(np.float32)).max(initial=0)) ** self.power


def test_keys_name_the_class_and_every_setting() -> None:
    questions = [
        *(Overlap(), Overlap(1e-4), Overlap(0.1), Integrity(), Rounding(), Rounding(1e-4), Copied()),
        *(Largest(), Largest(2)),
    ]
    assert len({question.key for question in questions}) == len(questions)
    assert Overlap().key == Overlap(1e-5).key == 'Overlap {"threshold": 1e-05}'


def test_questions_of_plug_ins_carry_their_module() -> None:
    """Two classes of one name share no answers, and the keys of our own stay as they were written before."""
    one, other = (dataclass(frozen=True)(type("Largest", (Largest,), {"__module__": m})) for m in ("one", "other"))
    assert one().key == 'one.Largest {"power": 1}'
    assert other().key == 'other.Largest {"power": 1}'
    assert Largest().key.startswith(f"{Largest.__module__}.Largest ")
    assert Integrity().key == "Integrity {}"


def test_a_survey_seen_through_a_lens_answers_the_question_behind() -> None:
    survey = Survey()
    survey.add(Largest(2), "a", 9.0)
    view = survey.seen_through(lambda question: Largest(2) if question == Largest() else question)
    assert view.total(Largest()) == view.at("a", Largest()) == 9.0
    assert view.knows(Largest(2))
    assert not survey.knows(Largest())
    survey.add(Largest(2), "b", 10.0)  # not a copy
    assert view.every(Largest()) == {"a": 9.0, "b": 10.0}
    twice = view.seen_through(lambda question: Largest() if question == Largest(3) else question)
    assert twice.total(Largest(3)) == 10.0
    assert (survey.derived("it", lambda: 1), view.derived("it", lambda: 2)) == (1, 2)


@dataclass(frozen=True)
class Named(Statistic[TreeSums]):
    """Sums by tensor."""

    answers: ClassVar[Answers[TreeSums]] = TreeSumsOf()

    def observe(self, stack: Stack) -> TreeSums:
        return tree_sums(stack.base.astype(np.float64)[None], stack.block.tensor.name, stack.block.start)


def test_what_holds_something_for_every_tensor_is_added_up_once_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In whichever order it comes, when it is asked for between, and in a survey that took it over from another."""
    added = list[int]()
    gather = TreeSumsOf.gather
    monkeypatch.setattr(TreeSumsOf, "gather", lambda kind, given: added.append(len(given)) or gather(kind, given))
    stacks = [
        Stack(Block(TensorSpec(n, "F32", (3,)), 0, 3), np.full(3, v, "f4"), (), ())
        for n, v in zip("abcd", range(4), strict=True)
    ]
    surveys = [Survey(), Survey()]
    for survey, order in zip(surveys, (stacks, stacks[::-1]), strict=True):
        for stack in order:
            survey.add(Named(), stack.block.tensor.name, Named().observe(stack))
    assert added == []
    assert surveys[0].total(Named()) == surveys[1].total(Named())
    assert added == [4, 4]
    assert surveys[0].total(Named()).total().tolist() == [18.0]
    assert added == [4, 4]
    later = Survey()
    later.update(surveys[0])
    later.add(Named(), "e", Named().observe(replace(stacks[3], block=Block(TensorSpec("e", "F32", (3,)), 0, 3))))
    assert later.total(Named()).total().tolist() == [27.0]
    assert surveys[0].total(Named()).total().tolist() == [18.0]


def test_equal_questions_are_one_key_of_a_dictionary() -> None:
    assert {Overlap(): 1, Overlap(1e-5): 2} == {Overlap(): 2}
    assert hash(Largest(2)) == hash(Largest(2))


def test_a_survey_gives_the_total_and_each_tensors_own_answer() -> None:
    survey = Survey()
    assert not survey.knows(Largest())
    for tensor, answer in (("a", 3.0), ("b", 5.0), ("a", 4.0), ("b", 1.0)):
        survey.add(Largest(), tensor, answer)
    assert survey.knows(Largest())
    assert not survey.knows(Largest(2))
    assert survey.total(Largest()) == 5.0
    assert survey.at("a", Largest()) == 4.0
    assert survey.at("b", Largest()) == 5.0


def test_what_was_not_folded_is_a_key_error() -> None:
    survey = Survey()
    with pytest.raises(KeyError):
        survey.total(Largest())
    survey.add(Integrity(), "a", Integrity().observe(random_stack(0, elements=4)))
    with pytest.raises(KeyError):
        survey.at("a", Integrity())  # kept as a total only


def test_update_takes_over_the_other_surveys_answers() -> None:
    one, other = Survey(), Survey()
    one.add(Largest(), "a", 1.0)
    other.add(Largest(), "a", 2.0)
    other.add(Largest(2), "a", 3.0)
    one.update(other)
    assert (one.total(Largest()), one.total(Largest(2))) == (2.0, 3.0)


def test_what_encode_writes_adopt_reads() -> None:
    survey, question = Survey(), Overlap()
    for seed, tensor in enumerate("abca"):
        survey.add(question, tensor, question.observe(random_stack(seed, elements=100)))
    survey.add(Integrity(), "a", Integrity().observe(random_stack(0, elements=100)))
    data = json.loads(json.dumps(survey.encode([question, Integrity()])))
    again = Survey()
    for statistic in (question, Integrity()):
        again.adopt(statistic, data[statistic.key])
    assert again.total(question) == survey.total(question)
    assert again.at("c", question) == survey.at("c", question)
    assert again.total(Integrity()) == survey.total(Integrity())


def test_copied_counts_the_elements_whose_bytes_differ() -> None:
    base = np.array([1, 2, 3], np.int64)
    agents = (base.copy(), np.array([1, 0, 4]), base.astype(np.int32))
    stack = Stack(Block(TensorSpec("ids", "I64", (3,)), 0, 3), base, agents, ("a", "b", "c"))
    answer = Copied().observe(stack)
    assert answer == (0, 2, 3)
    assert Copied().answers.combine(answer, (1, 1, 1)) == (1, 3, 4)
    assert Copied().answers.decode(json.loads(json.dumps(Copied().answers.encode(answer)))) == answer
