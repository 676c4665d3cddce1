"""What is scored: columns of suites, the skills that they belong to, and the mean of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.errors import EvalError, Problem, Where, did_you_mean
from agentmerge.eval.compare.estimates import Place
from agentmerge.eval.compare.rows import MEAN, UnitRow

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from agentmerge.eval.compare.asked import Asked
    from agentmerge.eval.record import ColumnFacts
    from agentmerge.eval.results import Results

NO_SKILL = ("own", "demo")
"""Domains that say nothing of a skill: their finest columns tell them."""
STEMS = {"maths": "math", "instructions": "instruct"}
"""What an agent's name may hold in place of a skill's."""
MAKING = ("metric", "groups", "combine")
"""What a column is made by: the same in every row, or one's numbers say something else than another's."""


def places_of(results: Mapping[str, Results], suites: Collection[str]) -> list[Place]:
    """Every column of these suites, in the order in which they were evaluated.

    Args:
        results: by row.
        suites: whose columns.

    Raises:
        EvalError: a column comes about in one row otherwise than in another: by another metric, or over other groups.
    """
    found: dict[str, Place] = {}
    first: dict[str, str] = {}
    problems = []
    for row, one in results.items():
        for suite in [name for name in one.record.suites if name in suites]:
            for name, column in one.record.suites[suite].columns.items():
                place = found.setdefault(f"{suite}.{name}", Place(suite, name, column))
                other = first.setdefault(place.id, row)
                if unlike := [key for key in MAKING if getattr(column, key) != getattr(place.facts, key)]:
                    problems.append(_otherwise(place, column, unlike, (other, row), one))
    if problems:
        raise EvalError(*problems)
    return list(found.values())


def units_of(
    places: Sequence[Place], domains: Mapping[str, str], asked: Mapping[str, Asked], skills: Mapping[str, Sequence[str]]
) -> list[UnitRow]:
    """Columns, then skills, then the mean.

    Args:
        places: every column.
        domains: by suite.
        asked: by suite.
        skills: columns by skill, as the user says; a column that is in none has its suite's domain for a skill.

    Raises:
        EvalError: a skill names a column that there is not.
    """
    given = {column: skill for skill, columns in skills.items() for column in columns}
    known = [place.id for place in places]
    for column in given:
        if column not in known:
            raise EvalError(f"--skill: no column '{column}'", todo=did_you_mean(column, known).strip())
    fine = {place.id for place in places if place.id in given or domains[place.suite] in NO_SKILL}
    columns = [
        UnitRow(
            id=place.id,
            label=place.facts.label,
            kind="column",
            skill=given.get(place.id) or _skill(place, domains[place.suite]),
            columns=[place.id],
            part=_counts_elsewhere(place, places, asked[place.suite], fine),
        )
        for place in places
    ]
    whole = [unit for unit in columns if not unit.part]
    return [
        *columns,
        *(
            UnitRow(
                id=f"skill/{skill}", label=skill, kind="skill", skill=skill,
                columns=[unit.id for unit in whole if unit.skill == skill],
            )
            for skill in dict.fromkeys(unit.skill for unit in whole)
        ),
        UnitRow(id=MEAN, label="mean", kind="mean", skill="", columns=[unit.id for unit in whole]),
    ]  # fmt: skip


def specialists_of(
    skills: Sequence[UnitRow], agents: Sequence[str], scores: Mapping[tuple[str, str], float], given: Mapping[str, str]
) -> dict[str, str]:
    """The agent of each skill: as the user says, else the one whose name holds the skill's, else the best one.

    Args:
        skills: the units.
        agents: their names.
        scores: by agent and the unit's id; what is missing is left out.
        given: agents by skill.

    Raises:
        EvalError: a skill or agent that there is not.
    """
    known = [unit.skill for unit in skills]
    for skill, agent in given.items():
        if skill not in known:
            raise EvalError(f"--specialist: no skill '{skill}'", todo=did_you_mean(skill, known).strip())
        if agent not in agents:
            raise EvalError(f"--specialist: no agent '{agent}'", todo=did_you_mean(agent, agents).strip())
    found = {}
    for unit in skills:
        named = [agent for agent in agents if STEMS.get(unit.skill, unit.skill).lower() in agent.lower()]
        scored = [agent for agent in agents if (agent, unit.id) in scores]
        if unit.skill in given:
            found[unit.skill] = given[unit.skill]
        elif len(named) == 1:
            found[unit.skill] = named[0]
        elif scored:
            found[unit.skill] = max(scored, key=lambda agent: scores[agent, unit.id])
    return found


def _otherwise(
    place: Place, column: ColumnFacts, unlike: Sequence[str], rows: tuple[str, str], results: Results
) -> Problem:
    """A column of the second of two rows that is not what it is in the first."""
    told = ", ".join(f"{key} is {getattr(place.facts, key)!r} and {getattr(column, key)!r}" for key in unlike)
    return Problem(
        f"{place.id}: '{rows[0]}' and '{rows[1]}' were not scored the same: {told}",
        "the same metric over the same groups in every row",
        "Score both with the same preset and settings (`agentmerge eval ... --score-only` asks nothing), or leave one "
        "out.",
        Where(path=str(results.folder)),
    )


def _skill(place: Place, domain: str) -> str:
    """The domain; of the demo's sub-tasks their domain, which their names begin with; of own prompts the column."""
    label = place.facts.label
    return label.split()[0] if domain == "demo" else label if domain in NO_SKILL else domain


def _counts_elsewhere(place: Place, places: Sequence[Place], asked: Asked, fine: Collection[str]) -> bool:
    """Whether a column's items are in another one that counts.

    That is the wider one of two, and the finer one where skills need it. What its suite calls another reading of the
    same does not count unless a skill names it.
    """
    wider = [other for other in places if _is_part(place, other, asked)]
    finer = [other for other in places if _is_part(other, place, asked) and other.id in fine]
    if place.id in fine:
        return bool(finer)
    return bool(finer or wider) or not place.facts.counts


def _is_part(place: Place, other: Place, asked: Asked) -> bool:
    """Whether another column of the suite is over more groups, this one's among them."""
    if place.suite != other.suite or place.suite != asked.suite:
        return False
    mine, theirs = (set(one.facts.groups or asked.groups) for one in (place, other))
    return mine < theirs
