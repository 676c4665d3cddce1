"""A sweep for people and machines: what the agents changed once, then a row per merge."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

from agentmerge.cli.sizes import format_size
from agentmerge.cli.table import Column, Table
from agentmerge.cli.tables import overlap_table, percent, plan_facts, plan_summary, scale_words
from agentmerge.files.destination import free_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from agentmerge.engine.plan import Plan
    from agentmerge.record import MergeRecord, SurveySummary


def sweep_facts(records: Mapping[str, MergeRecord], out: Path) -> list[dict[str, Any]]:
    """The records as plain data in the order of the merges, each with its folder."""
    return [{"out": str(out / name), **record.model_dump(mode="json")} for name, record in records.items()]


def sweep_summary(records: Mapping[str, MergeRecord], out: Path) -> list[Any]:
    """The overlap, once where it is the same for all, and what each merge made of it."""
    parts: list[Any] = []
    for _, group in groupby(records.items(), key=lambda item: _counted(item[1].survey)):
        alike = dict(group)
        parts += [overlap_table(next(iter(alike.values())).survey, scales=False), _table(alike)]
    first = next(iter(records.values()))
    seconds = first.timing.fold_seconds + first.timing.map_seconds
    size = format_size(sum(record.output.bytes for record in records.values()))
    agents = ", ".join(first.survey.agents)
    return [
        *parts,
        f"Merged {agents} {len(records)} times into {out}: {size}, {seconds:.1f} s. `agentmerge inspect` has all of a "
        "folder.",
    ]


def sweep_plan_facts(plans: Mapping[str, Plan], out: Path) -> list[dict[str, Any]]:
    """What every merge of a sweep would do, as plain data, each with its folder."""
    return [{"out": str(out / name), **plan_facts(plan, out / name)} for name, plan in plans.items()]


def sweep_plan_summary(plans: Mapping[str, Plan], out: Path) -> list[Any]:
    """What a sweep would do: the first merge in full, then the folder of each and what all take."""
    facts = sweep_plan_facts(plans, out)
    name, first = next(iter(plans.items()))
    table = Table(f"{len(plans)} merges from one reading", [Column("folder", "name"), Column("bytes")])
    for one in facts:
        table.add(one["out"], f"{one['write_bytes']:,}")
    needed = format_size(sum(one["write_bytes"] for one in facts))
    total = f"disk    {needed} needed for all, {format_size(free_bytes(out))} free"
    return [plan_summary(first, out / name), table, total]


def _counted(survey: SurveySummary) -> SurveySummary:
    """What of a survey does not depend on the method but for its threshold."""
    counts = {name: agent.model_copy(update={"scale": None}) for name, agent in survey.agents.items()}
    return survey.model_copy(update={"agents": counts})


def _table(records: Mapping[str, MergeRecord]) -> Table:
    """A row per merge; of what rounding took away, the least and the most among the agents."""
    names = list(next(iter(records.values())).survey.agents)
    scales = (Column(f"scale of {name}") for name in names)
    shares = Column("changes lost by the cast"), Column("unique elements where the rescale survived")
    table = Table("What each merge did", [Column("folder", "name"), *scales, *shares])
    for folder, record in records.items():
        rounding = record.rounding.values()
        table.add(
            folder,
            *map(scale_words, record.survey.agents.values()),
            _range(agent.changed_lost for agent in rounding),
            _range(agent.rescale_survived for agent in rounding),
        )
    return table


def _range(shares: Iterable[float | None]) -> str:
    """The least and the most of the shares that are known."""
    known = [share for share in shares if share is not None]
    least, most = percent(min(known, default=None)), percent(max(known, default=None))
    return least if least == most else f"{least}-{most}"
