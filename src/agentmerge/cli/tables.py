"""Records and plans as tables and text for people."""

from __future__ import annotations

import inspect
import shutil
import sys
from typing import TYPE_CHECKING, Any

from rich.table import Table

from agentmerge.cli.sizes import format_size
from agentmerge.engine import estimate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentmerge.engine.plan import Plan
    from agentmerge.methods.base import MergeMethod
    from agentmerge.record import AgentRetention, AgentRounding, MergeRecord, ProbeRecord, SurveySummary


def overlap_table(survey: SurveySummary) -> Table:
    """What each agent changed: the paper's figure 2 and table of scales in numbers."""
    title = f"{survey.elements:,} merged elements, changed where |agent - base| > {survey.threshold:g}"
    table = Table(title=title, title_justify="left")
    table.add_column("agent")
    for column in ("density", "changed", "unique", "shared", "rho", "scale", "changed by exactly 1, 2, ..."):
        table.add_column(column, justify="right")
    for name, agent in survey.agents.items():
        table.add_row(
            name,
            f"{agent.density:.2%}",
            f"{agent.changed:,}",
            f"{agent.unique:,}",
            f"{agent.shared:,}",
            "inf" if agent.overlap_unique_ratio is None else f"{agent.overlap_unique_ratio:.4f}",
            "per tensor" if agent.scale is None else f"{agent.scale:.4f}",
            " ".join(f"{count:,}" for count in agent.changed_by_exactly),
        )
    return table


def rounding_table(rounding: Mapping[str, AgentRounding]) -> Table:
    """What the output cast took away."""
    table = Table(title="Rounding", title_justify="left")
    table.add_column("agent")
    table.add_column("changes lost by the cast", justify="right")
    table.add_column("differences below the threshold", justify="right")
    table.add_column("unique elements where the rescale survived", justify="right")
    for name, agent in rounding.items():
        table.add_row(name, *map(_percent, (agent.changed_lost, agent.below_threshold, agent.rescale_survived)))
    return table


def retention_table(retention: Mapping[str, AgentRetention]) -> Table:
    """What the stored merge keeps of each agent."""
    table = Table(title="Retention", title_justify="left")
    table.add_column("agent")
    for region in ("unique", "shared", "changed"):
        table.add_column(region, justify="right")
    for name, kept in retention.items():
        found = (kept.unique, kept.shared, kept.changed)
        table.add_row(name, *("-" if value is None else f"{value:.4f}" for value in found))
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
        f"{format_size(output.bytes)} of {output.dtype} in {output.shards} file{'s' if output.shards > 1 else ''}, "
        f"{seconds:.1f} s.",
    ]
    if record.tensors.copied:
        lines.append(f"{len(record.tensors.copied)} tensors were copied; `agentmerge inspect {out}` says why.")
    return [overlap_table(record.survey), rounding_table(record.rounding), "\n".join(lines)]


def record_tables(record: MergeRecord) -> list[Any]:
    """Everything a record holds, for people."""
    sources = Table(title="Sources", title_justify="left")
    for column in ("name", "source", "bytes"):
        sources.add_column(column, overflow="fold")
    for name, source in record.sources.items():
        sources.add_row(name, source["source"], f"{sum(file['size'] for file in source['files']):,}")
    output, method = record.output, record.recipe["method"]
    settings = ", ".join(f"{key} {value}" for key, value in method.items() if key != "name")
    lines = [
        f"Method {method['name']}: {settings}",
        f"Output: {output.bytes:,} bytes of {output.dtype}, rounding {output.rounding}, shards: {output.shards}; "
        f"{record.tensors.merged} tensors merged, {len(record.tensors.copied)} copied",
        *(f"  copied {tensor.name}: {tensor.reason}" for tensor in record.tensors.copied[:20]),
        *([f"  and {len(record.tensors.copied) - 20} more"] if len(record.tensors.copied) > 20 else []),
        *(f"warning: {warning}" for warning in record.warnings),
        "Versions: " + ", ".join(f"{name} {number}" for name, number in record.versions.items()),
    ]
    kept = [] if record.retention is None else [retention_table(record.retention)]
    return [sources, overlap_table(record.survey), rounding_table(record.rounding), *kept, "\n".join(lines)]


def plan_facts(plan: Plan, out: Path) -> dict[str, Any]:
    """What a merge would do, from headers alone, as plain data; sizes in bytes, elements of the merged tensors."""
    parent = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    plan.family.agents.items()
    return {
        "base": plan.family.base.text,
        "agents": {
            name: {"source": a.text, "weight": plan.recipe.agents[name].weight}
            for name, a in plan.family.agents.items()
        },
        "method": plan.recipe.method.model_dump(mode="json"),
        "tensors": {"merged": len(plan.merged), "copied": sum(job.method is None for job in plan.jobs)},
        "elements": plan.elements,
        "read_bytes": estimate.input_bytes(plan),
        "write_bytes": estimate.output_bytes(plan),
        "shards": len(plan.layout.shards),
        "free_bytes": shutil.disk_usage(parent).free,
        "memory_bytes": estimate.memory_bytes(plan),
        "workers": estimate.workers(plan),
        "block_size": estimate.block_size(plan),
    }


def plan_summary(plan: Plan, out: Path) -> str:
    """What a merge would do, from headers alone."""
    facts = plan_facts(plan, out)
    pair = plan.family.tied
    tied = f"; {pair.head} is tied to {pair.embedding} and counts once" if pair else ""
    tensors, shards = facts["tensors"], facts["shards"]
    write = format_size(facts["write_bytes"])
    lines = [
        f"base    {facts['base']}",
        *(f"agent   {name} = {a['source']} (weight {a['weight']:g})" for name, a in facts["agents"].items()),
        f"method  {plan.recipe.method!r}",
        f"tensors {tensors['merged']} merged ({facts['elements']:,} elements), {tensors['copied']} copied{tied}",
        f"read    {format_size(facts['read_bytes'])} per pass",
        f"write   {write} in {shards} file{'s' if shards > 1 else ''} to {out}",
        f"disk    {write} needed, {format_size(facts['free_bytes'])} free",
        f"memory  about {format_size(facts['memory_bytes'])} with {facts['workers']} workers and blocks of "
        f"{format_size(facts['block_size'])}",
        *([f"cost    {cost}"] if (cost := estimate.cost_line(plan)) else []),
    ]  # fmt: skip
    return "\n".join(lines)


def methods_table(methods: Mapping[str, MergeMethod]) -> Table:
    """Every method with its settings' defaults."""
    table = Table(title="Methods", title_justify="left")
    for column in ("name", "settings and defaults", "what it is"):
        table.add_column(column, overflow="fold")
    for name, method in methods.items():
        settings = ", ".join(f"{key} {value}" for key, value in method.model_dump(mode="json").items() if key != "name")
        table.add_row(name, settings, method.about.get(name) or (type(method).__doc__ or "").strip().split("\n")[0])
    return table


def method_text(method: MergeMethod) -> str:
    """A method's formula, source and settings."""
    cls = type(method)
    lines = [inspect.cleandoc(sys.modules[cls.__module__].__doc__ or cls.__doc__ or ""), "", "Settings:"]
    for name, field in cls.model_fields.items():
        if name != "name":
            about = inspect.cleandoc(field.description or "").replace("\n", " ")
            lines.append(f"  {name} = {getattr(method, name)!r}: {about}")
    return "\n".join(lines)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"
