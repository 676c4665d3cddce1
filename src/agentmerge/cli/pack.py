"""The command `agentmerge pack`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import agentmerge
from agentmerge.cli.console import Bar, say, tell_warnings
from agentmerge.cli.options import Json, Quiet
from agentmerge.cli.process import printing
from agentmerge.cli.sizes import format_size
from agentmerge.deltas.file import check_free
from agentmerge.errors import RecipeError, Where, shortened
from agentmerge.sources.adapter import Materialize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.deltas.record import Held, PackRecord


def pack(
    base: Annotated[str, typer.Option(help="The base: whatever `merge` takes as one.", show_default=False)],
    agent: Annotated[str, typer.Option(help="The agent: whatever `merge` takes as one.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The file, NAME.safetensors.", show_default=False)],
    undo: Annotated[
        Path | None,
        typer.Option(help="A second file, which makes the base of the agent: the delta's inverse.", show_default=False),
    ] = None,
    materialize: Annotated[
        Materialize,
        typer.Option(help="How an adapter's sum or a trainer's wider parts are packed: in the base's dtype, or exact."),
    ] = "base_dtype",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file once the new one is whole.")] = False,
    workers: Annotated[int | None, typer.Option(help="Threads.", show_default="one per CPU")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write an agent as what it changed of its base: lossless, a fraction of the size.

    The file is an agent for `merge` and the others, over the same base; `agentmerge apply` makes the checkpoint of it.
    """
    if undo is not None and materialize == "exact":
        todo = "An inverse is over what lies there: apply the delta, and pack the base over that checkpoint."
        raise RecipeError("--undo: found --materialize exact", todo=todo, where=Where(path="--undo"))
    for path in (out, undo):
        if path is not None:
            check_free(path, overwrite=overwrite)
    with Bar(quiet) as bar:
        pack_one = partial(agentmerge.pack, overwrite=overwrite, workers=workers, watch=bar)
        records = {out: pack_one(base, agent, out, materialize=materialize)}
        if undo is not None:
            records[undo] = pack_one(agent, base, undo)
    with printing(f"The delta is complete in {out}"):
        tell_warnings(dict.fromkeys(note for record in records.values() for note in record.warnings), quiet)
        facts = [record.model_dump() | {"out": str(path)} for path, record in records.items()]
        text = "\n".join(line for path, record in records.items() for line in summary(record, path))
        say((facts if undo is not None else records[out]) if json else text, as_json=json, quiet=quiet)


def summary(record: PackRecord, out: Path) -> Iterator[str]:
    """What was written, and what was not."""
    yield f"Wrote {out}: {size_of(record)}."
    yield from held_lines(record)
    if record.left:
        yield f"  not kept: {shortened(record.left)}"
    if not record.same_files:
        yield "  the tensors are kept, but not the files that they were read from: apply writes safetensors"


def size_of(record: Held) -> str:
    """How large a packed delta is, and how much it changes."""
    share = f"{record.nbytes / max(record.full, 1):.1%} of {format_size(record.full)}"
    compared = record.elements - record.uncompared
    differ = f"{record.changed - record.uncompared:,} of {compared:,} elements differ" if compared else ""
    whole = f"{record.uncompared:,} are kept without a comparison" if record.uncompared else ""
    return f"{format_size(record.nbytes)}, {share}; {', '.join(filter(None, (differ, whole))) or 'no elements'}"


def held_lines(record: Held) -> Iterator[str]:
    """What a packed delta holds."""
    forms = {form: found for form, found in record.forms.items() if found.tensors}
    yield f"  tensors: {', '.join(f'{one.tensors} {form} ({format_size(one.nbytes)})' for form, one in forms.items())}"
    new = [name for name in record.without_base if name not in record.unlike]
    if new:
        yield f"  kept whole, as the base lacks them: {shortened(new)}"
    if record.unlike:
        yield f"  kept whole, as the base has them in another dtype or shape: {shortened(record.unlike)}"
    if record.lacking:
        yield f"  the agent lacks: {shortened(record.lacking)}"
    if record.files:
        yield f"  files that differ from the base's: {shortened(record.files)}"
