"""The command `agentmerge grams`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentmerge.cli.measured import Model, Rollouts, tell
from agentmerge.cli.options import Json, Overwrite, Quiet, takes_settings
from agentmerge.importance.grams import GramOptions, measure_grams

if TYPE_CHECKING:
    from agentmerge.importance.record import GramRecord


@takes_settings(GramOptions, GramOptions.of)
def grams(
    wanted: GramOptions,
    model: Model,
    data: Rollouts,
    out: Annotated[Path, typer.Option(help="New or empty folder for the matrices.", show_default=False)],
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the Gram matrices of the inputs of an agent's layers, for esm and regmean.

    A killed run resumes when the same command is run again.
    """
    tell(
        lambda bar: measure_grams(model, data, out, wanted, overwrite=overwrite, watch=bar),
        lambda record: summary(record, out),
        f"The Gram matrices are complete in {out}",
        json=json,
        quiet=quiet,
    )


def summary(record: GramRecord, out: Path) -> str:
    """What was measured, and where it goes."""
    layers = sum(1 + len(gram.shared) for gram in record.grams)
    return "\n".join(
        [
            f"Wrote {out}: {len(record.grams)} Gram matrices for {layers} layers, from {record.data.examples} examples "
            f"with {record.tokens:,} tokens.",
            "Next, in a recipe:",
            f"  agents: {{code: {{source: {record.model.source}, grams: {out}}}}}",
        ]
    )
