"""Put a comparison together: who is who, the same items side by side, means, differences, retention, verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.errors import EvalError, did_you_mean
from agentmerge.eval.compare.asked import asked_of
from agentmerge.eval.compare.paired import Paired
from agentmerge.eval.compare.references import matched
from agentmerge.eval.compare.resampled import DRAWS, LEVEL, SWAPS
from agentmerge.eval.compare.rows import MEAN, CellRow, Comparison, ModelRow
from agentmerge.eval.compare.scene import Scene
from agentmerge.eval.compare.unanswered import unanswered
from agentmerge.eval.compare.units import places_of, specialists_of, units_of
from agentmerge.eval.compare.unlike import unlike
from agentmerge.eval.compare.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.eval.compare.references import Published
    from agentmerge.eval.compare.roles import Entry
    from agentmerge.eval.compare.rows import DifferenceRow, RetentionRow, UnitRow


def compare(
    entries: Sequence[Entry],
    *,
    suites: Sequence[str] = (),
    against: str | None = None,
    skills: Mapping[str, Sequence[str]] | None = None,
    specialists: Mapping[str, str] | None = None,
    references: Sequence[Published] = (),
    seed: int = 0,
    draws: int = DRAWS,
    swaps: int = SWAPS,
) -> Comparison:
    """Compare evaluated models.

    Args:
        entries: the rows.
        suites: leave out all others; () takes all that any row has.
        against: the row that differences are shown to; None takes the base, else the first row.
        skills: columns by skill; others have their suite's domain for a skill.
        specialists: agents by skill; else by name, else the best.
        references: rows that were published.
        seed: of the draws.
        draws: of the bootstrap.
        swaps: of the swap tests.

    Raises:
        EvalError: rows were not asked or scored the same, or there is no such row, suite, skill or agent.
    """
    results = {entry.name: entry.results for entry in entries}
    domains = {suite: facts.domain for one in results.values() for suite, facts in one.record.suites.items()}
    _check_names("--suites: no suite", suites, domains)
    chosen = [suite for suite in domains if suite in suites or not suites]
    asked = {
        suite: asked_of(suite, {row: one for row, one in results.items() if suite in one.record.suites})
        for suite in chosen
    }
    places = places_of(results, chosen)
    units = units_of(places, domains, asked, skills or {})
    _check_names("--against: no row", [against] if against else [], results)
    paired = Paired(asked, places, units, seed=seed, draws=draws, swaps=swaps)
    scene = _scene(entries, units, paired, specialists or {})
    return Comparison(
        models=scene.models,
        units=units,
        cells=_cells(scene, paired, entries),
        against=(against := against or scene.base or entries[0].name),
        differences=_differences(scene, paired, against),
        retention=_retention(scene, paired),
        verdict=[*unanswered(entries, chosen), *judge(scene)],
        references=[row for published in references for row in matched(published, units)],
        notes=[*_missing(scene, paired), *unlike(entries, chosen)],
        settings={"seed": seed, "draws": draws, "swaps": swaps, "level": LEVEL},
    )


def _scene(entries: Sequence[Entry], units: Sequence[UnitRow], paired: Paired, given: Mapping[str, str]) -> Scene:
    skills = [unit for unit in units if unit.kind == "skill"]
    agents = [entry.name for entry in entries if entry.role == "agent"]
    scores = {
        (agent, unit.id): found.mean
        for agent in agents
        for unit in skills
        if (found := paired.estimate(agent, unit.id)) is not None
    }
    special = specialists_of(skills, agents, scores, given)
    models = [_model(entry, [skill for skill, agent in special.items() if agent == entry.name]) for entry in entries]
    merges = {entry.name: record for entry in entries if entry.role == "merged" and (record := entry.merge)}
    return Scene(models, list(units), special, paired, merges)


def _model(entry: Entry, skills: list[str]) -> ModelRow:
    merge = entry.results.record.model.merge or {}
    method = merge.get("method")
    return ModelRow(
        name=entry.name,
        role=entry.role,
        folder=str(entry.results.folder),
        method=method.get("name") if isinstance(method, dict) else method,
        seconds=merge.get("seconds"),
        skills=skills,
    )


def _cells(scene: Scene, paired: Paired, entries: Sequence[Entry]) -> list[CellRow]:
    found = []
    for unit in scene.units:
        ranks = _ranks(scene, unit)
        for entry in entries:
            mean, error, n = _cell(entry, unit, paired)
            found.append(
                CellRow(
                    row=entry.name, unit=unit.id, mean=mean, error=error, n=n, rank=ranks.get(entry.name),
                    beats=_beats(scene, unit, entry),
                )
            )  # fmt: skip
    return found


def _cell(entry: Entry, unit: UnitRow, paired: Paired) -> tuple[float | None, float | None, int | None]:
    """Mean, error and n: of a column those of its record."""
    if unit.kind == "column":
        suite, name = unit.id.split(".", 1)
        facts = entry.results.record.suites.get(suite)
        column = facts.columns.get(name) if facts else None
        return (column.mean, column.error, column.n) if column else (None, None, None)
    found = paired.estimate(entry.name, unit.id)
    return (None, None, None) if found is None else (found.mean, paired.error(found), None)


def _ranks(scene: Scene, unit: UnitRow) -> dict[str, int]:
    """Best and second best, with ties, of the merged models; of all where none is merged."""
    rows = scene.merged or [model.name for model in scene.models]
    scores = {row: round(found.mean, 12) for row in rows if (found := scene.paired.estimate(row, unit.id)) is not None}
    order = sorted(set(scores.values()), reverse=True)[:2]
    return {row: order.index(score) + 1 for row, score in scores.items() if score in order} if len(scores) > 1 else {}


def _beats(scene: Scene, unit: UnitRow, entry: Entry) -> bool | None:
    rival = scene.best_agent if unit.kind == "mean" else scene.specialists.get(unit.skill)
    if entry.role != "merged" or rival is None:
        return None
    mine, theirs = scene.paired.estimate(entry.name, unit.id), scene.paired.estimate(rival, unit.id)
    return None if mine is None or theirs is None else mine.mean > theirs.mean


def _differences(scene: Scene, paired: Paired, against: str) -> list[DifferenceRow]:
    rows = [model.name for model in scene.models if model.name != against]
    return [one for row in rows for one in paired.differences(row, against).values()]


def _retention(scene: Scene, paired: Paired) -> list[RetentionRow]:
    if scene.base is None:
        return []
    return [
        found
        for merged in scene.merged
        for unit in scene.skills
        if (agent := scene.specialists.get(unit.skill))
        and (found := paired.retention(merged, agent, scene.base, unit)) is not None
    ]


def _missing(scene: Scene, paired: Paired) -> list[str]:
    """Which row lacks which suite."""
    suites = {
        model.name: [s for s, asked in paired.asked.items() if model.name not in asked.rows] for model in scene.models
    }
    found = [f"'{row}' lacks {', '.join(absent)}: no mean over it." for row, absent in suites.items() if absent]
    if found and all(paired.estimate(model.name, MEAN) is None for model in scene.models):
        found.append("No row has every suite; choose those that all have with --suites.")
    return found


def _check_names(found: str, wanted: Sequence[str], known: Mapping[str, object]) -> None:
    for name in wanted:
        if name not in known:
            raise EvalError(f"{found} '{name}'", todo=did_you_mean(name, known).strip())
