"""Plain rules: what the scores of base, agents and merges say, and what to change. docs/evaluation.md lists them.

A difference counts where its swap test, adjusted by Holm for all that were asked in the same breath, stays below
ALPHA: of a whole family of tests not one calls noise a difference, with a probability of 95 %. What is not told apart
is never called equal: the smallest difference that the items could have shown is said beside it.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from agentmerge.eval.compare.changes import lighter, skipping
from agentmerge.eval.compare.rows import MEAN, Judgement
from agentmerge.eval.compare.scene import ALPHA
from agentmerge.eval.compare.words import are, difference, listed, points

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agentmerge.eval.compare.rows import RetentionRow
    from agentmerge.eval.compare.scene import Scene, Tested

POWER = 2.8
"""Standard errors of a difference that a test at 5 % sees with a probability of 80 %: 1.96 + 0.84."""
MOST = 4
"""Columns that a sentence names."""
METHOD = "wudi_auto"
"""Recommended where agents are in each other's way (docs/evidence.md)."""


def judge(scene: Scene) -> list[Judgement]:
    """Every rule that applies, in the order of RULES."""
    return [found for rule in RULES for found in rule(scene)]


def best_merge(scene: Scene) -> Iterator[Judgement]:
    """Which merge is best in the mean, and which others are not told from it."""
    best = scene.best_merge
    if best is None or len(scene.merged) < 2:
        return
    worse = [one for one in scene.among_merges if one.higher]
    level = [one for one in scene.among_merges if not one.higher]
    text = [f"Of the merges {best} has the best mean, {points(scene.mean(best) or 0)}."]
    if worse:
        text.append(f"It is above {listed(f'{one.difference.against} by {difference(one)}' for one in worse)}.")
    if level:
        rivals = [one.difference.against for one in level]
        text.append(f"{listed(rivals)} {are(rivals)} not told from it: {_smallest(level)}")
    yield Judgement(
        rule="best_merge", rows=[best, *(o.difference.against for o in level)], units=[MEAN], text=" ".join(text)
    )


def best_agent(scene: Scene) -> Iterator[Judgement]:
    """Whether one agent alone is as good as every merge."""
    agent, merge = scene.best_agent, scene.best_merge
    if agent is None or merge is None:
        return
    mine = next(one for one in scene.merges_to_best_agent if one.difference.row == merge)
    above = [one for one in scene.merges_to_best_agent if one.higher]
    means = points(scene.mean(agent) or 0), points(scene.mean(merge) or 0)
    scores = f"{agent} alone has a mean of {means[0]}, the best merge, {merge}, {means[1]}"
    change = None
    others = [one.difference.row for one in above if one.difference.row != merge]
    if mine.higher:
        text = f"{scores}: it is above it by {difference(mine)}"
        text += f"; so {are(others)} {listed(others)}." if others else "."
    elif above:
        text = f"{scores}: it is not told from it ({difference(mine)}), but {listed(others)} {are(others)} above it."
    elif all(one.lower for one in scene.merges_to_best_agent):
        text = f"{scores}: the agent beats every merge ({difference(mine)}). Don't merge; use {agent}."
        change = {"use": agent}
    else:
        text = f"{scores}: no merge is told from the best single agent ({difference(mine)}; {_smallest([mine])[:-1]})."
        text += f" As long as that is so, {agent} alone does the same." if mine.difference.value <= 0 else ""
    yield Judgement(rule="best_agent", rows=[agent, merge], units=[MEAN], text=text, change=change)


def broke(scene: Scene) -> Iterator[Judgement]:
    """Agents that lost what the base could do, and merges that took it over."""
    for agent, tests in scene.broken.items():
        units = {one.difference.unit for one in tests}
        heirs = scene.heirs(agent)
        names = list(dict.fromkeys(one.difference.row for one in heirs))
        text = [f"{agent} broke what {scene.base} could do: {_places(scene, tests)}."]
        if not names:
            safe = f"No merge is below {scene.base} there beyond noise: nothing needs to change for it."
            text.append(safe if scene.merged else "A merge may take it over: score it there, too.")
            yield Judgement(rule="broke", rows=[agent], units=sorted(units), text=" ".join(text))
            continue
        text.append(f"{listed(names)} took it over: {_places(scene, heirs, rows=True)}.")
        change, words = _cure(scene, agent, names)
        text.append(words)
        yield Judgement(rule="broke", rows=[agent, *names], units=sorted(units), text=" ".join(text), change=change)


def interference(scene: Scene) -> Iterator[Judgement]:
    """Merges below the base where no agent is: they did it themselves."""
    by_agents = {one.difference.unit for one in scene.agents_to_base if one.lower}
    found = [one for one in scene.merges_to_base if one.lower and one.difference.unit not in by_agents]
    for merge, tests in _by_row(found):
        method = next(model.method for model in scene.models if model.name == merge)
        other = f"`{METHOD}`, which looks for what interferes least," if method != METHOD else "a smaller scale"
        yield Judgement(
            rule="interference",
            rows=[merge],
            units=[one.difference.unit for one in tests],
            text=f"{merge} is below {scene.base} where no agent is: {_places(scene, tests)}. The agents are in each "
            f"other's way there. Try {other} or lower weights.",
            change={"method": {"name": METHOD}} if method != METHOD else None,
        )


def retention(scene: Scene) -> Iterator[Judgement]:
    """What every merge keeps of what the specialists gained."""
    for merge in scene.merged if scene.base else []:
        tests = {one.difference.unit: one for one in scene.merges_to_specialists if one.difference.row == merge}
        kept = {unit: row for unit in tests if (row := scene.kept(merge, unit)) is not None and row.value is not None}
        if kept:
            yield _kept(scene, merge, kept, tests)


def _kept(scene: Scene, merge: str, kept: Mapping[str, RetentionRow], tests: Mapping[str, Tested]) -> Judgement:
    """One merge in every skill."""
    parts = [
        f"{row.value:.0%} ({row.low:.0%} to {row.high:.0%}) of the {points(row.gained)} of {row.agent} in "
        f"{scene.label(unit)}, {_against_specialist(tests[unit])}"
        for unit, row in kept.items()
    ]
    text = [f"{merge} keeps of what the agents gained: {'; '.join(parts)}."]
    lost = {row.agent: row.value or 0.0 for unit, row in kept.items() if tests[unit].lower}
    change, words = _raise(scene, merge, lost, every=len(lost) == len(kept))
    rows = list(dict.fromkeys([merge, *(row.agent for row in kept.values())]))
    return Judgement(
        rule="retention", rows=rows, units=list(kept), text=" ".join([*text, *words]), change=change or None
    )


def _against_specialist(one: Tested) -> str:
    """How the merge does beside the agent itself."""
    if one.lower:
        return f"below it by {difference(one, sign=False)}"
    return f"{'above it by' if one.higher else 'not told from it, at'} {difference(one)}"


def _raise(scene: Scene, merge: str, lost: Mapping[str, float], every: bool) -> tuple[dict[str, Any], list[str]]:
    """What to do for agents whose skills a merge lost: a higher weight, but not for one that broke something."""
    harmful = [agent for agent in lost if agent in scene.harmful]
    method = next(model.method for model in scene.models if model.name == merge)
    words = [f"{agent} can't simply be given more: see what it broke." for agent in harmful]
    if every and lost and method != METHOD:
        words.append(f"It loses of every agent: use `{METHOD}`, which keeps their changes whole.")
        return {"method": {"name": METHOD}}, words
    weights = {agent: {"weight": _heavier(share)} for agent, share in lost.items() if agent not in harmful}
    if weights:
        words.append(f"Give {listed(weights)} a higher weight.")
    return ({"agents": weights} if weights else {}), words


def _heavier(kept: float) -> float:
    """A weight that makes up for what was lost, were scores linear in it; at most 2."""
    return round(min(2.0, 1 / max(kept, 0.5)), 2)


def nothing_learned(scene: Scene) -> Iterator[Judgement]:
    """Specialists that are not told from the base: there is nothing to keep."""
    for unit in scene.skills if scene.base and scene.merged else []:
        agent = scene.specialists.get(unit.skill)
        gain = scene.paired.differences(agent, scene.base or "").get(unit.id) if agent else None
        row = scene.kept(scene.merged[0], unit.id)
        if agent and gain and row is not None and row.value is None:
            found = f"{100 * gain.value:+.1f} points, {100 * gain.low:+.1f} to {100 * gain.high:+.1f}"
            text = (
                f"{unit.label}: there is no gain that a merge could keep: {agent}, the specialist there, is not above "
                f"{scene.base} beyond noise ({found})."
            )
            yield Judgement(rule="nothing_learned", rows=[agent], units=[unit.id], text=text)


def noise(scene: Scene) -> Iterator[Judgement]:
    """Nothing at all is told apart."""
    to_others = scene.agents_to_base, scene.merges_to_base, scene.merges_to_specialists, scene.merges_to_best_agent
    every = [one for family in (*to_others, scene.among_merges) for one in family]
    if every and not any(one.p < ALPHA for one in every):
        means = [one for one in every if one.difference.unit == MEAN] or every
        text = f"No difference on this page is more than noise: {_smallest(means)} Ask more items before choosing."
        yield Judgement(rule="noise", rows=[], units=[], text=text)


def _cure(scene: Scene, agent: str, heirs: Sequence[str]) -> tuple[dict[str, Any], str]:
    """What to do about an agent whose damage merges took over."""
    own = [skill for skill, name in scene.specialists.items() if name == agent]
    gains = [
        one
        for one in scene.agents_to_base
        if one.difference.row == agent and scene.paired.units[one.difference.unit].skill in own and one.higher
    ]
    if not gains:
        return {"leave_out": [agent]}, f"{agent} gained nothing that is told from noise in return: leave it out."
    for merge in heirs:
        if (found := skipping(scene.merges.get(merge), agent)) is not None:
            return found
    return lighter(agent)


def _places(scene: Scene, tests: Sequence[Tested], rows: bool = False) -> str:
    """Where and by how much, the largest first."""
    order = sorted(tests, key=lambda one: one.difference.value)
    named = [
        f"{one.difference.row + ' in ' if rows else ''}{scene.label(one.difference.unit)} "
        f"by {difference(one, sign=False)}"
        for one in order[:MOST]
    ]
    more = [f"{len(order) - MOST} more"] if len(order) > MOST else []
    return listed([*named, *more])


def _by_row(tests: Sequence[Tested]) -> Iterator[tuple[str, list[Tested]]]:
    for row, group in groupby(tests, key=lambda one: one.difference.row):
        yield row, list(group)


def _smallest(tests: Sequence[Tested]) -> str:
    """What the items could have shown."""
    errors = [one.difference.error for one in tests]
    if not max(errors):
        return "they have the same score on every item."
    seen = f"{100 * POWER * max(errors):.1f} points"
    return f"these items show four in five of the differences of {seen}, and fewer of smaller ones."


RULES: tuple[Callable[[Scene], Iterator[Judgement]], ...] = (
    noise,
    best_agent,
    best_merge,
    broke,
    interference,
    retention,
    nothing_learned,
)
