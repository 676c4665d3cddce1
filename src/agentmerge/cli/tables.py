"""Records and methods as tables and text for people."""

from __future__ import annotations

import inspect
import json
import sys
from typing import TYPE_CHECKING, Any

from agentmerge.cli.sizes import format_size
from agentmerge.cli.table import Column, Table
from agentmerge.engine import estimate
from agentmerge.files.destination import free_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentmerge.engine.plan import Plan
    from agentmerge.methods.base import MergeMethod
    from agentmerge.record import AgentOverlap, AgentRetention, AgentRounding, MergeRecord, ProbeRecord, SurveySummary


AGENT = Column("agent", "name")


def overlap_table(survey: SurveySummary, *, scales: bool = True) -> Table:
    """What each agent changed: the paper's figure 2 and table of scales in numbers."""
    title = f"{survey.elements:,} merged elements, changed where |agent - base| > {survey.threshold:g}"
    numbers = map(Column, ("density", "changed", "unique", "shared", "rho", *(["scale"] if scales else [])))
    table = Table(title, [AGENT, *numbers, Column("changed by exactly 1, 2, ...", spare=True)])
    for name, agent in survey.agents.items():
        table.add(
            name,
            f"{agent.density:.2%}",
            f"{agent.changed:,}",
            f"{agent.unique:,}",
            f"{agent.shared:,}",
            "inf" if agent.overlap_unique_ratio is None else f"{agent.overlap_unique_ratio:.4f}",
            *([scale_words(agent)] if scales else []),
            " ".join(f"{count:,}" for count in agent.changed_by_exactly),
        )
    return table


def rounding_table(rounding: Mapping[str, AgentRounding]) -> Table:
    """What the output cast took away."""
    table = Table(
        "Rounding",
        [
            AGENT,
            Column("changes lost by the cast"),
            Column("differences below the threshold"),
            Column("unique elements where the rescale survived"),
        ],
    )
    for name, agent in rounding.items():
        table.add(name, *map(percent, (agent.changed_lost, agent.below_threshold, agent.rescale_survived)))
    return table


def retention_table(retention: Mapping[str, AgentRetention]) -> Table:
    """What the stored merge keeps of each agent."""
    table = Table("Retention", [AGENT, *map(Column, ("unique", "shared", "changed"))])
    for name, kept in retention.items():
        found = (kept.unique, kept.shared, kept.changed)
        table.add(name, *("-" if value is None else f"{value:.4f}" for value in found))
    return table


def probe_tables(record: ProbeRecord) -> list[Any]:
    """What a probe saw, and its advice where it looked at everything."""
    findings = record.findings
    advice = [] if findings is None else [f"- {', '.join(a.agents) or 'all'}: {a.text}" for a in findings.advice]
    return [overlap_table(record.survey), *(["\n".join(advice)] if advice else [])]


def merge_summary(record: MergeRecord, out: Path) -> list[Any]:
    """What a merge did, in short, and what to do next."""
    output, seconds = record.output, record.timing.fold_seconds + record.timing.map_seconds
    lines = [
        f"Merged {', '.join(record.survey.agents)} into {out}: {record.tensors.merged} tensors, "
        f"{format_size(output.bytes)} of {output.dtype} in {_count(output.shards, 'file')}, {seconds:.1f} s.",
    ]
    if record.tensors.copied:
        lines.append(f"{len(record.tensors.copied)} tensors were copied; `agentmerge inspect {out}` says why.")
    return [overlap_table(record.survey), rounding_table(record.rounding), "\n".join(lines)]


def record_tables(record: MergeRecord) -> list[Any]:
    """Everything a record holds, for people."""
    sources = Table("Sources", [Column("name", "name"), Column("bytes"), Column("source", "text")])
    for name, source in record.sources.items():
        sources.add(name, f"{sum(file['size'] for file in source['files']):,}", _source_words(source))
    output, copied = record.output, record.tensors.copied
    lines = [
        f"Method {method_words(record.recipe['method'])}",
        f"Output: {output.bytes:,} bytes of {output.dtype}, rounding {output.rounding}, shards: {output.shards}; "
        f"{record.tensors.merged} tensors merged, {len(copied)} copied",
        *(f"  copied {tensor.name}: {tensor.reason}" for tensor in copied[:20]),
        *([f"  and {len(copied) - 20} more"] if len(copied) > 20 else []),
        *(f"warning: {warning}" for warning in record.warnings),
        "Versions: " + ", ".join(f"{name} {number}" for name, number in record.versions.items()),
    ]
    kept = [] if record.retention is None else [retention_table(record.retention)]
    return [sources, overlap_table(record.survey), rounding_table(record.rounding), *kept, "\n".join(lines)]


def _source_words(source: Mapping[str, Any]) -> str:
    """What the user wrote, and the commit on the hub that it was."""
    return f"{source['source']} (commit {source['commit'][:12]})" if "commit" in source else str(source["source"])


def plan_facts(plan: Plan, out: Path) -> dict[str, Any]:
    """What a merge would do, from headers alone, as plain data; sizes in bytes, elements of the merged tensors."""
    drafts, write = sum(slot.nbytes for slot in estimate.drafts_of([plan]).values()), estimate.output_bytes(plan)
    cost = estimate.cost_of(plan)
    return {
        "base": plan.family.base.text,
        **({} if plan.family.onto is None else {"onto": plan.family.onto.text}),
        **({} if plan.recipe.keep is None else {"keep": plan.recipe.keep}),
        "agents": {
            name: {"source": a.text, "weight": plan.recipe.agents[name].weight}
            for name, a in plan.family.agents.items()
        },
        "method": plan.recipe.method.model_dump(mode="json"),
        "tensors": {"merged": len(plan.merged), "copied": sum(job.method is None for job in plan.jobs)},
        "elements": plan.elements,
        "fetch_bytes": estimate.fetch_bytes(plan),
        "read_bytes": estimate.input_bytes(plan),
        "write_bytes": write,
        "draft_bytes": drafts,
        "disk_bytes": write + drafts,
        "shards": len(plan.layout.shards),
        "free_bytes": free_bytes(out),
        "memory_bytes": estimate.memory_bytes(plan),
        "workers": estimate.workers(plan),
        "block_size": estimate.block_size(plan),
        "flop": cost.flop,
        "seconds": cost.seconds,
        "devices": cost.devices,
    }


def plan_summary(plan: Plan, out: Path) -> str:
    """What a merge would do, from headers alone."""
    facts = plan_facts(plan, out)
    pair = plan.family.tied
    tied = f"; {pair.head} is tied to {pair.embedding} and counts once" if pair else ""
    tensors, shards, write = facts["tensors"], facts["shards"], format_size(facts["write_bytes"])
    lines = [
        f"base    {facts['base']}",
        *(f"{role}    {facts[role]}" for role in ("onto", "keep") if role in facts),
        *(f"agent   {name} = {a['source']} (weight {a['weight']:g})" for name, a in facts["agents"].items()),
        f"method  {method_words(facts['method'])}",
        f"tensors {tensors['merged']} merged ({facts['elements']:,} elements), {tensors['copied']} copied{tied}",
        *([f"fetch   {format_size(facts['fetch_bytes'])} from the hub first"] if facts["fetch_bytes"] else []),
        f"read    {format_size(facts['read_bytes'])} per pass",
        f"write   {write} in {_count(shards, 'file')} to {out}",
        f"disk    {_needed(facts)} needed, {format_size(facts['free_bytes'])} free",
        f"memory  about {format_size(facts['memory_bytes'])} with {facts['workers']} workers and blocks of "
        f"{format_size(facts['block_size'])}",
        *([f"cost    {cost}"] if (cost := estimate.cost_line(plan)) else []),
    ]  # fmt: skip
    return "\n".join(lines)


def _needed(facts: Mapping[str, Any]) -> str:
    """Disk space, and what of it is given back at the end."""
    needed, drafts = format_size(facts["disk_bytes"]), facts["draft_bytes"]
    return f"{needed} ({format_size(drafts)} of it while the merge runs)" if drafts else needed


def methods_table(methods: Mapping[str, MergeMethod]) -> Table:
    """Every method with its settings' defaults."""
    columns = [Column("name", "name"), Column("settings and defaults", "text"), Column("what it is", "text")]
    table = Table("Methods", columns)
    for name, method in methods.items():
        about = method.about.get(name) or (type(method).__doc__ or "").strip().split("\n")[0]
        table.add(name, settings_words(method.model_dump(mode="json")), about)
    return table


def method_text(method: MergeMethod) -> str:
    """A method's formula, source and settings."""
    cls = type(method)
    lines = [inspect.cleandoc(sys.modules[cls.__module__].__doc__ or cls.__doc__ or ""), "", "Settings:"]
    settings = method.model_dump(mode="json")
    for name, field in cls.model_fields.items():
        if name != "name":
            about = inspect.cleandoc(field.description or "").replace("\n", " ")
            value = settings[name]
            shown = f"'{value}'" if isinstance(value, str) else _written(value)
            lines.append(f"  {name} = {shown}: {about}")
    return "\n".join(lines)


def percent(share: float | None) -> str:
    """A share for people; "-" where there is nothing to share."""
    return "-" if share is None else f"{share:.2%}"


def method_words(method: Mapping[str, Any]) -> str:
    """A method as a record or a plan has it, in a recipe's words: "ram_plus: rescale 0.1, clip 2.0"."""
    settings = settings_words(method)
    return f"{method['name']}: {settings}" if settings else str(method["name"])


def settings_words(method: Mapping[str, Any]) -> str:
    """Its settings, those of a method inside it in brackets."""
    return ", ".join(f"{key} {_written(value)}" for key, value in method.items() if key != "name")


def _written(value: Any) -> str:
    """A setting as a recipe spells it; a method by its name, its settings in brackets."""
    if isinstance(value, dict) and "name" in value:
        settings = settings_words(value)
        return f"{value['name']} ({settings})" if settings else str(value["name"])
    return value if value and isinstance(value, str) else json.dumps(value)


def scale_words(agent: AgentOverlap) -> str:
    """An agent's scale for people."""
    return "per tensor" if agent.scale is None else f"{agent.scale:.4f}"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
