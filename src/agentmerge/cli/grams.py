"""The command `agentmerge grams`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentmerge.cli.measured import tell
from agentmerge.cli.options import Json, Overwrite, Quiet, takes_settings
from agentmerge.importance.grams import GramOptions, measure_grams
from agentmerge.importance.record import GRAMS

if TYPE_CHECKING:
    from agentmerge.importance.record import GramRecord


@takes_settings(GramOptions, GramOptions.of)
def grams(
    wanted: GramOptions,
    model: Annotated[str, typer.Argument(help="Base or agent: a folder with config, tokenizer and safetensors.")],
    data: Annotated[
        Path,
        typer.Option(
            help='JSON lines: of an agent its rollouts, {"prompt": ..., "response": ...}; of the base prompts of what '
            'it can do, {"prompt": ..., "skill": ...}, answered or not.',
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="New or empty folder for the matrices.", show_default=False)],
    overwrite: Overwrite = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the inputs of layers: the base's, to keep what it can do; an agent's, for esm and regmean.

    A killed run resumes when the same command is run again.
    """
    tell(
        lambda bar: measure_grams(model, data, out, wanted, overwrite=overwrite, again=True, watch=bar),
        lambda record: summary(record, out),
        f"The Gram matrices are complete in {out}",
        last=out / GRAMS,
        json=json,
        quiet=quiet,
    )


def summary(record: GramRecord, out: Path) -> str:
    """What was measured, and where it goes."""
    layers = sum(1 + len(gram.shared) for gram in record.grams)
    wrote = f"Wrote {out}: {len(record.grams)} Gram matrices for {layers} layers, from {record.data.examples}"
    agent = (
        f"  agents: {{code: {{source: {record.model.source}, grams: {out}}}}}       of an agent, for esm and regmean"
    )
    return "\n".join(
        [
            f"{wrote} {'examples' if record.data.response_tokens else 'prompts'} with {record.tokens:,} tokens.",
            "Next, in a recipe:",
            f"  keep: {out}       of the base, for wudi_auto, wudi and regmean",
            *([agent] if record.data.response_tokens else []),
        ]
    )
