"""Only models that were asked the same are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.compare.asked import asked_of
from agentmerge.eval.results import load_results

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.eval.results import Results

    from .conftest import Made


def loaded(*models: Made) -> dict[str, Results]:
    return {model.folder.name: load_results(model.folder) for model in models}


def test_items_are_matched_by_their_ids_in_any_order(made: Callable[..., Made]) -> None:
    one, two = (made(name).suite("gsm8k", "maths", {"b": [1, 0], "a": [1, 1, 0]}) for name in ("one", "two"))
    lines = [
        {"suite": "gsm8k", "item": f"{group} {i}", "group": group, "metrics": {"right": [float(i == 1), 1.0]}}
        for group, i in (("a", 2), ("b", 1), ("a", 0), ("b", 0), ("a", 1))
    ]
    two.scores("gsm8k", lines)
    found = asked_of("gsm8k", loaded(one, two))
    assert found.groups == {"a": slice(0, 3), "b": slice(3, 5)}
    assert found.values["right"].tolist() == [[1, 1, 0, 1, 0], [0, 1, 0, 0, 1]]


def test_other_items_are_refused_and_told(made: Callable[..., Made]) -> None:
    one = made("one").suite("gsm8k", "maths", {"": [1, 0, 1]})
    two = made("two").suite("gsm8k", "maths", {"": [1, 0, 1, 0, 0]})
    with pytest.raises(EvalError, match=r"'one' and 'two' were not asked the same: 2 items differ \( 3,  4\)") as told:
        asked_of("gsm8k", loaded(one, two))
    assert "--limit" in told.value.problems[0].todo


def test_an_item_in_another_group_is_another_item(made: Callable[..., Made]) -> None:
    one, two = (made(name).suite("gsm8k", "maths", {"a": [1, 0]}) for name in ("one", "two"))
    two.scores("gsm8k", [{"suite": "gsm8k", "item": f"a {i}", "group": "b", "metrics": {}} for i in (0, 1)])
    with pytest.raises(EvalError, match="2 items differ"):
        asked_of("gsm8k", loaded(one, two))


def test_other_data_under_the_same_ids_are_refused(made: Callable[..., Made]) -> None:
    files = [[{"name": "test.jsonl", "origin": "hub", "sha256": sha256, "items": 2}] for sha256 in ("aa", "bb")]
    one, two = (
        made(name).suite("gsm8k", "maths", {"": [1, 0]}, data=data)
        for name, data in zip(("one", "two"), files, strict=True)
    )
    with pytest.raises(EvalError, match=r"read other data: test\.jsonl differ"):
        asked_of("gsm8k", loaded(one, two))


@pytest.mark.parametrize("score", [float("nan"), float("inf"), (1.0, float("nan")), (1.0, -1.0)])
def test_a_score_that_is_no_number_is_told_with_its_item(made: Callable[..., Made], score: object) -> None:
    model = made("one").suite("gsm8k", "maths", {"": [1, 0]})
    cell = list(score) if isinstance(score, tuple) else [score, 1.0]
    model.scores("gsm8k", [{"suite": "gsm8k", "item": "seven", "group": "", "metrics": {"right": cell}}])
    with pytest.raises(EvalError, match="item seven: right is"):
        asked_of("gsm8k", loaded(model))


def test_an_item_that_stands_twice_is_refused(made: Callable[..., Made]) -> None:
    model = made("one").suite("gsm8k", "maths", {"": [1, 0]})
    model.scores("gsm8k", [{"suite": "gsm8k", "item": "0", "group": "", "metrics": {}}] * 2)
    with pytest.raises(EvalError, match="item 0 is scored twice"):
        asked_of("gsm8k", loaded(model))
