"""bfcl-eval's own possible answers score 1 in its own checker, but for those that nothing can score in."""

from __future__ import annotations

import sys
from collections import defaultdict

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.statistics import summary
from agentmerge.eval.suites.bfcl import CATEGORIES, COUNTS, RELEVANCE, Bfcl
from tests.eval.suites.bfcl_gold import in_lines, in_words, right_calls, wrong_calls

UNSATISFIABLE = {"live_simple_106-63-0", "live_simple_112-68-0", "live_multiple_862-181-3", "live_multiple_964-207-0",
                 "simple_java_36", "simple_java_65"}  # fmt: skip
"""See docs/evaluation.md, as for those of one style."""
MISSES = {
    "paper": UNSATISFIABLE | {"simple_java_1", "simple_java_67", "simple_java_68"},
    "toolrl": UNSATISFIABLE | {"simple_java_64"},
}
SPELL = {"paper": in_words, "toolrl": in_lines}
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def items():
    pytest.importorskip("bfcl_eval", reason="pip install --no-deps bfcl-eval, see docs/evaluation.md")
    return Bfcl.make().items()


def said(item, preset: str, *, right: bool) -> str:
    """An answer to an item."""
    if item.group in RELEVANCE:
        calls = right != ("irrelevance" in item.group)
        return SPELL[preset]([("f", {"a": 1})], item.data["checked"], item.group) if calls else "None of them helps."
    calls = (right_calls if right else wrong_calls)(item.data["checked"], item.data["answer"])
    return SPELL[preset](calls, item.data["checked"], item.group)


@slow
def test_the_data_are_those_of_the_papers_table(items):
    counts = defaultdict(int)
    for item in items:
        counts[item.group] += 1
    assert dict(counts) == COUNTS
    assert [file.items for file in Bfcl.make().data_files()] == [COUNTS[category] for category in CATEGORIES]


@slow
@pytest.mark.parametrize("preset", MISSES)
def test_right_answers_are_right_and_wrong_ones_wrong(items, preset):
    suite = Bfcl.make(preset)
    right = suite.score_all(items, [{"text": said(item, preset, right=True)} for item in items])
    missed = {item.id for item, cells in zip(items, right, strict=True) if cells["right"].value != 1}
    assert missed == MISSES[preset]
    wrong = suite.score_all(items, [{"text": said(item, preset, right=False)} for item in items])
    assert {cells["right"].value for cells in wrong} == {0}


@slow
def test_the_two_means_are_bfcl_evals(items):
    """Right are the first 20 of each category, in which the four kinds of non-live ones count alike."""
    seen = defaultdict(int)
    outputs = []
    for item in items:
        seen[item.group] += 1
        outputs.append({"text": said(item, "paper", right=seen[item.group] <= 20)})
    suite = Bfcl.make()
    cells = suite.score_all(items, outputs)
    scores = [(item.group, own) for item, own in zip(items, cells, strict=True)]
    means = {column.name: summary(column, scores).mean for column in suite.columns}
    simple = (means["simple_python"] + means["simple_java"] + means["simple_javascript"]) / 3
    assert means["simple_python"] == 20 / 400
    assert means["non_live"] == pytest.approx((simple + 3 * 20 / 200) / 4)
    assert means["live"] == pytest.approx((20 + 20 + 16 + 20) / (258 + 1053 + 16 + 24))


@slow
@pytest.mark.parametrize(
    ("text", "group", "right"),
    [
        ("<think>[wrong(a=1)]</think>\n[f(a=1)]", "live_relevance", 1),
        ("I would call a function, but can't.", "irrelevance", 1),
        ("[]", "irrelevance", 1),
        ("[f(a=1)]", "irrelevance", 0),
        ("", "irrelevance", 1),
        ("", "simple_python", 0),
        ("[f(a=1", "simple_python", 0),
    ],
)
def test_what_calls_nothing_is_right_where_nothing_should_be_called(items, text, group, right):
    item = next(item for item in items if item.group == group)
    assert Bfcl.make().score(item, {"text": text})["right"].value == right


@slow
def test_toolrls_tool_none_is_no_call(items):
    item = next(item for item in items if item.group == "irrelevance")
    none = '<tool_call>\n{"name": "None", "parameters": {}}\n</tool_call>'
    assert Bfcl.make("toolrl").score(item, {"text": none})["right"].value == 1
    assert Bfcl.make("toolrl").score(item, {"text": none.replace("None", "f")})["right"].value == 0


@slow
def test_the_registry_that_stands_in_is_gone_after_the_import(items):
    assert "bfcl_eval.constants.model_config" not in sys.modules


def test_relevance_counts_in_means_only_where_neither_of_bfcl_evals_is_there():
    columns = {column.name: column for column in Bfcl.make().columns}
    assert set(columns["live"].groups) | set(columns["non_live"].groups) == set(CATEGORIES) - set(RELEVANCE)
    assert [name for name, column in columns.items() if not column.counts] == [
        name for name in CATEGORIES if name in RELEVANCE
    ]
    assert all(column.counts for column in Bfcl.make(categories=("simple_java", *RELEVANCE)).columns)


def test_a_misspelt_category_is_told():
    problem = Bfcl.make(categories=("simple_pyton",)).requires()[0]
    assert "Did you mean 'simple_python'?" in str(problem)
    with pytest.raises(EvalError, match=r"bfcl\.style"):
        Bfcl.make(style="other")
