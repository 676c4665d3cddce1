"""The command `agentmerge inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentmerge.cli.console import say
from agentmerge.cli.options import Json
from agentmerge.cli.pack import held_lines, size_of
from agentmerge.cli.table import Column, Table
from agentmerge.cli.tables import percent, record_tables
from agentmerge.deltas.look import is_delta, look
from agentmerge.files.os_errors import source_errors
from agentmerge.record import RECORD, MergeRecord
from agentmerge.sources.hub import hub_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.deltas.record import DeltaRecord

SHOWN = 20
"""Tensors of a packed delta that are shown to people."""


def inspect(
    place: Annotated[
        str,
        typer.Argument(
            metavar="DIR|DELTA",
            help="A folder that `merge` wrote; or a packed delta, be it a file or a model on the hub.",
            show_default=False,
        ),
    ],
    base: Annotated[
        str | None,
        typer.Option(help="Of a packed delta: say whether it lies over this base.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Read back what a merge did, or what a packed delta holds.

    Of a merge it shows sources, overlap, scales, what rounding took away and, after --report, retention; of a delta its
    base, and how much of which tensors it changes. The delta's base is not needed.
    """
    with source_errors(place):
        merged = base is None and (Path(place) / RECORD).is_file()
    if not merged and (base is not None or is_delta(place) or hub_model(place)):
        delta = look(place, base)
        say(delta if json else delta_tables(delta), as_json=json)
        return
    record = MergeRecord.load(Path(place))
    say(record if json else record_tables(record), as_json=json)


def delta_tables(record: DeltaRecord) -> list[Any]:
    """Everything a packed delta tells, for people; of a merge also what that did."""
    most = sorted(record.tensors, key=lambda tensor: -tensor.changed)
    title = "Tensors" if len(most) <= SHOWN else f"Tensors: the {SHOWN} of {len(most)} that change most; --json has all"
    numbers = map(Column, ("elements", "changed", "density", "bytes"))
    table = Table(title, [Column("tensor", "name"), Column("form", "name"), *numbers])
    for tensor in most[:SHOWN]:
        elements = tensor.elements
        share = percent(tensor.changed / elements if elements else None)
        table.add(tensor.name, tensor.form, f"{elements:,}", f"{tensor.changed:,}", share, f"{tensor.nbytes:,}")
    merge = [] if record.merge is None else ["It was packed of this merge:", *record_tables(record.merge)]
    return ["\n".join(_lines(record)), table, *merge]


def _lines(record: DeltaRecord) -> Iterator[str]:
    at = f" (commit {record.commit[:12]})" if record.commit else ""
    share = "" if record.uncompared else f" ({record.density:.2%})"
    yield f"{record.delta}{at}, a packed delta of version {record.version}: {size_of(record)}{share}."
    yield from held_lines(record)
    if not record.same_files:
        yield "  it keeps no weight files of the agent: apply writes safetensors of its tensors"
    yield f"  base: {record.base}, fingerprint {record.base_print}, sample {record.sample[:16]}"
    yield f"  agent: fingerprint {record.agent_print}"
    if record.compared == "numbers":
        yield f"  over {record.over}: it fits, by its tensors and a sample of their numbers"
    elif record.compared == "headers":
        yield f"  over {record.over}: its tensors fit; its numbers are not here, and were not compared"
