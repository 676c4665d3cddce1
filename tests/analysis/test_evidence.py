"""Advice recommends what won on docs/evidence-tiny.md: page, data, the table in the code and the texts agree."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge.analysis.advice import RULES
from agentmerge.analysis.evidence import BASELINE, LARGER, TRIED
from agentmerge.methods.registry import known_methods, resolve_method
from tests.analysis.test_advice import found, moved, unrelated

if TYPE_CHECKING:
    from agentmerge.analysis.rows import Advice, Findings
    from agentmerge.tensors import Array

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "evidence-tiny.md").read_text(encoding="utf-8")
LARGER_PAGE = (ROOT / "docs" / "evidence-135m.md").read_text(encoding="utf-8")
WON = [tried for tried in TRIED if tried.won]


def rows_of(page: str, head: str = "| untuned setting |") -> dict[str, tuple[float, float]]:
    """The table of untuned settings: the mean and the worst by label."""
    table = page[page.index(head) :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {row[0]: (float(row[-2].split()[0]), float(row[-1].split()[0])) for row in cells}


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of experiments/tiny_agents, which are scripts beside each other."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "experiments" / "tiny_agents"), *sys.path])
    before = set(sys.modules)
    yield import_module
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_table_is_the_one_of_the_page() -> None:
    assert {tried.label: (tried.mean, tried.worst) for tried in TRIED} == rows_of(PAGE)
    assert [tried.label for tried in TRIED] == list(rows_of(PAGE))


def test_the_table_of_the_larger_agents_is_the_one_of_the_page_and_the_rule_won_there() -> None:
    assert {tried.label: (tried.mean, tried.worst) for tried in LARGER} == rows_of(LARGER_PAGE, "| rule | mean |")
    assert LARGER[0].won
    assert LARGER[0].worst > 0
    assert all(resolve_method(tried.method) for tried in LARGER)


def test_the_settings_are_those_that_were_merged_and_scored(experiment: Any) -> None:
    """But for the preset's name, under which advice recommends it."""
    merged = experiment("merges").UNTUNED
    assert merged.keys() == {tried.label for tried in TRIED}
    for tried in TRIED:
        method = resolve_method(tried.method)
        assert method == resolve_method(merged[tried.label]).model_copy(update={"name": method.name}), tried.label


def test_the_page_is_what_the_results_give(experiment: Any) -> None:
    seeds = [experiment("results").Seed.read(number) for number in (1, 2)]
    assert rows_of(experiment("tables").untuned_table(seeds)) == rows_of(PAGE)


def test_what_won_is_ahead_of_all_that_did_not_and_of_the_noise() -> None:
    assert WON
    assert min(tried.mean for tried in WON) > max(tried.mean for tried in TRIED if not tried.won) + 0.5
    assert min(tried.worst for tried in WON) > -1


def findings() -> list[Findings]:
    """Agents on whom each of the rules has something to say."""

    def twin(name: str, base: Array, random: np.random.Generator) -> Array:
        return moved(0.2)(name, base, np.random.default_rng(5))

    def fine(name: str, base: Array, random: np.random.Generator) -> Array:
        return base + (random.random(base.size) < np.where(np.abs(base) < 2.0**-7, 0.6, 0.02)) * 2e-4

    return [
        found(a=moved(0.5), b=moved(0.5)),
        found(a=moved(0.05), b=moved(0.05)),
        found(a=moved(1.0), b=moved(1.0)),
        found(a=moved(0.3, size=2.0**-7), b=moved(0.3, size=2.0**-7)),
        found(a=twin, b=twin),
        found(a=fine, b=fine),
        found(a=moved(0.3, only="norm"), b=moved(0.3)),
        found(a=moved(1.0, only=r"[qv]_proj"), b=moved(0.1)),
        found(a=moved(0.3), b=moved(0.3), threshold=5e-4),
        found(a=moved(0.02), b=moved(0.5, size=0.2)),
        found(a=moved(0.2), b=moved(0.2), c=moved(0.5, size=0.4)),
        found(a=moved(0.2), b=unrelated),
    ]


@pytest.fixture(scope="module")
def given() -> list[Advice]:
    """All that is said."""
    return [item for found in findings() for item in found.advice]


def test_every_rule_is_heard(given: list[Advice]) -> None:
    assert {item.rule for item in given} == {rule.__name__ for rule in RULES}


def test_every_method_that_is_recommended_won(given: list[Advice]) -> None:
    won = [resolve_method(tried.method) for tried in WON]
    recommended = [resolve_method(method) for item in given for method in item.methods]
    won.append(resolve_method(LARGER[0].method))
    assert {method.name for method in recommended} == {"ram_plus_auto", "wudi_auto"}
    assert all(method in won for method in recommended)


def test_no_text_names_a_method_or_a_setting_beside_those(given: list[Advice]) -> None:
    """But the baseline, whose scale is tuned, and a threshold, which no trial has scored and which is said so."""
    for item in given:
        code = re.findall(r"`([^`]*)`", item.text)
        allowed = {method["name"] for method in item.methods} | {BASELINE}
        assert not (known_methods().keys() & code) - allowed, item.text
        settings = {text for text in code if text.startswith("--set") or ":" in text}
        assert settings <= {"--set threshold=0"}, item.text
        assert not settings or "no trial has scored" in item.text
        if BASELINE in code:
            assert f"`{BASELINE}` at a" in item.text
            assert "tuned" in item.text


def test_the_words_elsewhere_recommend_the_same() -> None:
    """What a user reads first: the README, the demo, `agentmerge methods`, the methods' page."""
    lines = {
        "README.md": (ROOT / "README.md").read_text(encoding="utf-8"),
        "demo": (ROOT / "src" / "agentmerge" / "cli" / "demo.py").read_text(encoding="utf-8"),
        "docs/methods.md": (ROOT / "docs" / "methods.md").read_text(encoding="utf-8"),
        **{name: method.about.get(name, "") for name, method in known_methods().items()},
    }
    for place, text in lines.items():
        for paragraph in text.split("\n\n"):
            if re.search(r"\brecommend", paragraph.replace("#the-recommendation", "")):
                assert "wudi_auto" in paragraph or place == "wudi_auto", (place, paragraph)
