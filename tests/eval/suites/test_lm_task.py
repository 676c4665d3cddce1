"""lm-eval's tasks on our rows: right answers score 1, wrong ones 0, and the prompts are lm-eval's own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.suite import Given
from agentmerge.eval.suites.gsm8k import Gsm8k
from agentmerge.eval.suites.ifeval import Ifeval, has_punkt
from agentmerge.eval.suites.math500 import Math500

DATA = Path(__file__).parent / "data"
GIVEN = Given(DATA)
slow = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def slowly(function):
    for mark in slow:
        function = mark(function)
    return function


def means(suite, texts) -> dict[str, float]:
    """Of every metric the plain mean over items."""
    items = suite.items()
    cells = suite.score_all(items, [{"text": text} for text in texts(items)])
    return {name: sum(own[name].value for own in cells) / len(cells) for name in cells[0]}


@pytest.fixture
def lm_eval():
    return pytest.importorskip("lm_eval", reason="pip install 'agentmerge[eval]'")


@slowly
@pytest.mark.parametrize("settings", [{}, {"chat": False}, {"shots": 0}, {"task": "gsm8k_cot", "multiturn": True}])
@pytest.mark.usefixtures("lm_eval")
def test_gsm8ks_own_answers_are_right_and_others_wrong(settings):
    suite = Gsm8k.make("paper", GIVEN, **settings)
    mark = "The answer is" if "task" in settings else "####"

    def right(items):
        return [item.data["doc"]["answer"].replace("####", mark) + "." * ("task" in settings) for item in items]

    assert means(suite, right) == {"strict": 1, "flexible": 1}
    wrong = [f"It may be {mark} 99999."] * 4
    assert means(suite, lambda items: wrong) == {"strict": 0, "flexible": 0}
    assert means(suite, lambda items: ["I don't know"] * 4) == {"strict": 0, "flexible": 0}


@slowly
@pytest.mark.usefixtures("lm_eval")
def test_an_equal_expression_is_right_to_math_verify_alone():
    suite = Math500.make("paper", GIVEN)
    end = "Final Answer: The final answer is ${}$. I hope it is correct."
    told = [end.format(answer) for answer in ("5/6", "7", "(x+1)^2")]
    solutions = [item.data["doc"]["solution"] for item in suite.items()]
    exact = [f"{one} {end.format(answer)}" for one, answer in zip(solutions, ANSWERS, strict=True)]
    assert means(suite, lambda items: exact) == {"verify": 1, "exact": 1}
    assert means(suite, lambda items: told)["verify"] == 1
    assert means(suite, lambda items: ["$\\boxed{12345}$"] * 3) == {"verify": 0, "exact": 0}


ANSWERS = ("\\frac{5}{6}", "7", "x^2+2x+1")
FOLLOWED = {
    "1": "rain falls on the roof and the cat sleeps.",
    "2": "They are red and green.",
    "3": "* apple\n* pear\n* plum",
    "4": '"These are more than twelve words in quotes, so that both wishes are granted at once."',
    "5": '{"capital": "Paris"}',
    "6": "The sun shines. That is all.",
    "7": "One is here. Two is there. Three is nowhere.",
}
IGNORED = {
    "1": "Rain falls, as it does.", "2": "Blue is one.", "3": "* apple\n* pear", "4": "Too short.",
    "5": "Paris, of course", "6": "That is all. But no.", "7": "One only.",
}  # fmt: skip


@slowly
@pytest.mark.usefixtures("lm_eval")
def test_instructions_that_are_followed_count_and_others_do_not():
    suite = Ifeval.make("paper", GIVEN, without_punkt="leave_out")
    names = {"prompt_strict", "inst_strict", "prompt_loose", "inst_loose"}
    assert len(suite.items()) == (7 if has_punkt() else 6)
    assert means(suite, lambda items: [FOLLOWED[item.id] for item in items]) == dict.fromkeys(names, 1)
    assert means(suite, lambda items: [IGNORED[item.id] for item in items]) == dict.fromkeys(names, 0)
    assert means(suite, lambda items: [""] * len(items)) == dict.fromkeys(names, 0)


@slowly
@pytest.mark.usefixtures("lm_eval")
def test_an_instruction_level_mean_weighs_a_prompt_by_its_instructions():
    suite = Ifeval.make("paper", GIVEN, without_punkt="leave_out")
    item = suite.items()[0]
    cell = suite.score(item, {"text": "the rain falls on the roof, and the cat sleeps."})["inst_strict"]
    assert (cell.value, cell.weight) == (0.5, 2)


@slowly
@pytest.mark.usefixtures("lm_eval")
def test_ifeval_without_nltks_data_says_how_to_get_them():
    problems = Ifeval.make("paper", GIVEN).requires()
    assert has_punkt() or "nltk.downloader punkt_tab" in str(problems[0])
    assert Ifeval.make("paper", GIVEN, without_punkt="leave_out").requires() == []


@slowly
@pytest.mark.usefixtures("lm_eval")
@pytest.mark.parametrize(("chat", "multiturn"), [(True, False), (True, True), (False, False)])
def test_prompts_are_lm_evals_own_to_the_letter(chat, multiturn):
    task = Gsm8k.make("paper", GIVEN).task
    task.set_fewshot_seed(seed=1234)  # what simple_evaluate does by default
    task.build_all_requests(
        apply_chat_template=chat,
        fewshot_as_multiturn=multiturn,
        chat_template=lambda chat, add_generation_prompt=True: json.dumps(chat),
    )
    theirs = [instance.args for instance in task.instances]
    suite = Gsm8k.make("paper", GIVEN, chat=chat, multiturn=multiturn)
    items = suite.items()
    assert [suite.prompt(item) for item in items] == [json.loads(one) if chat else one for one, _ in theirs]
    assert all(len(item.data["shots"]) == 5 for item in items)
    asked = [next(suite.converse(item))[0].sampling.stop for item in items]
    assert asked == [tuple(arguments["until"]) for _, arguments in theirs]


@slowly
@pytest.mark.usefixtures("lm_eval")
def test_examples_are_needed_where_the_task_has_none_of_its_own(tmp_path):
    shutil.copy(DATA / "gsm8k_test.jsonl", tmp_path)
    problems = Gsm8k.make("paper", Given(tmp_path)).requires()
    assert [problem.where.path for problem in problems] == [str(tmp_path / "gsm8k_train.jsonl")]
    for settings in ({"shots": 0}, {"task": "gsm8k_cot"}, {"task": "gsm8k_cot_zeroshot"}):
        assert Gsm8k.make("paper", Given(tmp_path), **settings).requires() == []


def test_a_data_file_that_is_not_as_expected_is_told_with_the_line(tmp_path):
    from agentmerge.eval.suites.gsm8k import TEST

    assert "needs gsm8k_test.jsonl, and no --data-dir is given" in str(TEST.missing(Given())[0])
    (tmp_path / "gsm8k_test.jsonl").write_text('{"question": "q", "answer": "#### 1"}\n{"question": "q"}\n')
    with pytest.raises(EvalError, match=r"object 2 has no answer; it has question, expected objects with question"):
        TEST.rows(Given(tmp_path))
