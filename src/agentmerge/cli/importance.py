"""The command `agentmerge importance`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentmerge.cli.measured import Model, Rollouts, tell
from agentmerge.cli.options import Json, Overwrite, Quiet, takes_settings
from agentmerge.importance.prepare import Options
from agentmerge.importance.record import RECORD
from agentmerge.importance.run import measure

if TYPE_CHECKING:
    from agentmerge.importance.record import ImportanceRecord


@takes_settings(Options, Options.of)
def importance(
    wanted: Options,
    model: Model,
    data: Rollouts,
    out: Annotated[Path, typer.Option(help="New or empty folder for the importance.", show_default=False)],
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure which weights an agent's own answers depend on: the diagonal Fisher.

    A killed run resumes when the same command is run again.
    """
    tell(
        lambda bar: measure(model, data, out, wanted, overwrite=overwrite, again=True, watch=bar),
        lambda record: summary(record, out),
        f"The importance is complete in {out}",
        last=out / RECORD,
        json=json,
        quiet=quiet,
    )


def summary(record: ImportanceRecord, out: Path) -> str:
    """What was measured, and where it goes."""
    data = record.data
    return "\n".join(
        [
            f"Wrote {out}: the importance of {record.tensors.written} tensors, from {data.examples} examples with "
            f"{data.response_tokens:,} response tokens.",
            f"  mean log-likelihood of a response token: {record.log_likelihood:.3f}",
            "Next, in a recipe:",
            f"  agents: {{code: {{source: {record.model.source}, importance: {out}}}}}",
        ]
    )
