"""The pages and figures that experiments/agents_135m makes of its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def test_the_guards_table_has_what_it_told_and_what_it_missed(
    experiment: Any, scored: dict[int, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, results = experiment("guard_tables"), experiment("results")
    lost = {"damaged": -20.0, "tool": 1.0, "code": -9.0}
    monkeypatch.setattr(guard, "scored", lambda _, agent, __: results.Value(lost[agent], 1.0))
    rows = [line.split(" | ") for line in guard.guard_table([results.Seed(scored[2])]).splitlines()[2:]]
    assert [(row[0], row[-1]) for row in rows] == [
        ("| damaged", "**harm** |"),
        ("| tool", "may be noise |"),
        ("| code", "- |"),
    ]
    found = guard.guard_numbers([results.Seed(scored[2])])
    assert found["guard_losses"] == "1 of 2"
    assert found["guard_healthy_lost"] == "-9.0 ± 1.0 points in sort"


def test_the_pages_say_everything_that_their_texts_name(
    experiment: Any, scored: dict[int, dict[str, Any]], survey: Any, second: list[Any], every_method: Any
) -> None:
    hypotheses, report = experiment("hypotheses"), experiment("report")
    studies = [hypotheses.read_registered(path) for path in (hypotheses.REGISTERED, hypotheses.REGISTERED2)]
    seeds = [*(experiment("results").Seed(data) for data in scored.values()), survey, *second, every_method]
    pages = report.pages(seeds, *studies)
    for text in (*pages.values(), report.guard_part(seeds, *studies)):
        assert "{" not in text
        assert "nan" not in text
        assert "gemma3" not in text
        assert "(not scored)" not in text
    rows = [
        line.split(" | ") for line in pages["evidence.md"].splitlines() if line.startswith("| healthy sets: untuned")
    ]
    assert [cell.split(" ")[0] for cell in rows[0][1:]] == ["**holds**", "**holds**"]
    assert all("| **holds** | " in pages[page] for page in ("evidence-135m.md", "evidence-135m-2.md"))


def test_every_method_is_in_the_table_of_methods_the_best_first(
    experiment: Any, survey: Any, every_method: Any
) -> None:
    tables, rules = experiment("tables2"), experiment("rules")
    more = ["wudi_auto per matrix", "calibrate iso_c"]
    lines = tables.methods_table(every_method, more, "wudi_auto", ("TA", "TIES"), survey).splitlines()[2:]
    rows = [line.strip("| ").split(" | ") for line in lines]
    assert {row[0].partition(" (")[0] for row in rows} == {*(f"`{name}`" for name in rules.DEFAULTS), *more}
    less = [float(row[4].split(" ")[0] or 0) for row in rows]
    assert less == sorted(less, reverse=True)
    assert [row[0] for row in rows if not row[4]] == ["`wudi_auto`"]
    assert "`fisher` (8 of 12 sets)" in {row[0] for row in rows}


def test_what_a_merge_does_where_no_agent_was_trained_is_against_the_base(experiment: Any, second: list[Any]) -> None:
    tables, sets = experiment("tables2"), experiment("sets")
    seed, name = second[0], "RAM | E2 | stochastic"
    gap = tables.untrained_gaps(seed, "RAM")["tool, memory"]
    left = [domain for domain in experiment("tasks").DOMAINS if domain not in {"tool", "memory"}]
    assert sets.untrained("E2") == left
    assert gap.mean == pytest.approx(seed.mean(name, left).mean - seed.mean("base", left).mean)
    worst = tables.ends(tables.single_gaps(seed, "RAM"))
    assert worst.worst.mean == min(gap.mean for gap in tables.single_gaps(seed, "RAM").values() if gap)
    assert "uneven" not in tables.untrained_table([seed], ["RAM"])


@pytest.mark.slow
def test_figures_are_drawn_alike_from_the_same_results(
    experiment: Any,
    scored: dict[int, dict[str, Any]],
    survey: Any,
    second: list[Any],
    every_method: Any,
    tmp_path: Path,
) -> None:
    pytest.importorskip("matplotlib", reason="draws the figures; .ci/run installs it")
    seeds, hypotheses = [experiment("results").Seed(data) for data in scored.values()], experiment("hypotheses")
    for folder in ("a", "b"):
        experiment("figures").draw_all(seeds, hypotheses.read_registered(), tmp_path / folder)
        registered = hypotheses.read_registered(hypotheses.REGISTERED2)
        experiment("figures2").draw_all([survey, *second], registered, tmp_path / folder)
        experiment("figures2").draw_methods(every_method, tmp_path / folder)
    assert len(list((tmp_path / "a").iterdir())) == 8
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
