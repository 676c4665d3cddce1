"""The command `agentmerge importance`: parse, call, print. Knows no models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentmerge.cli import options as o

if TYPE_CHECKING:
    from agentmerge.importance.record import ImportanceRecord


def importance(
    model: Annotated[str, typer.Argument(help="The agent: a folder with config, tokenizer and safetensors.")],
    data: Annotated[
        Path,
        typer.Option(help='Its own rollouts, JSON lines of {"prompt": ..., "response": ...}.', show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="New or empty folder for the importance.", show_default=False)],
    examples: Annotated[int, typer.Option(help="How many: the first that fit.")] = 256,
    max_length: Annotated[
        int, typer.Option(help="Tokens of prompt and response; a longer prompt loses its beginning.")
    ] = 2048,
    chat: Annotated[bool, typer.Option("--chat", help="A plain prompt is one user message.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[
        str,
        typer.Option(
            help="Of weights and gradients: bfloat16, float32 or float64.", show_default="bfloat16 on cuda, or float32"
        ),
    ] = "auto",
    every: Annotated[float, typer.Option(help="Minutes between two saves, to resume from.")] = 10.0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT once the new one is whole.")] = False,
    json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Measure which weights an agent's own answers depend on: the diagonal Fisher. A killed run resumes."""
    from agentmerge.cli.console import Bar, say, tell_warnings
    from agentmerge.importance.run import Options, measure

    options = Options.of(examples=examples, max_length=max_length, chat=chat, device=device, dtype=dtype, every=every)
    try:
        with Bar(quiet) as bar:
            record = measure(model, data, out, options, overwrite=overwrite, watch=bar)
    except KeyboardInterrupt:
        typer.echo("Interrupted; the same command resumes.", err=True)
        raise typer.Exit(130) from None
    tell_warnings(record.warnings, quiet)
    say(record if json else summary(record, out), as_json=json, quiet=quiet)


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
