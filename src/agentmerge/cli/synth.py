"""The command `agentmerge synth`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from agentmerge.cli.console import Bar, say
from agentmerge.cli.options import Json, Quiet
from agentmerge.cli.process import printing
from agentmerge.cli.sizes import format_size, parse_size
from agentmerge.errors import RecipeError, Where
from agentmerge.synth.shapes import find_shape
from agentmerge.synth.write import SynthReport, synthesise


def synth(
    out: Annotated[Path, typer.Option(help="New or empty folder for the set.", show_default=False)],
    shape: Annotated[
        str,
        typer.Option(help="tiny, qwen2.5-0.5b, qwen2.5-1.5b, qwen2.5-3b, qwen2.5-7b, llama-3.2-3b or qwen3-30b-a3b."),
    ] = "tiny",
    agents: Annotated[
        int | None,
        typer.Option(help="How many agents.", show_default="one per density, or 3"),
    ] = None,
    densities: Annotated[
        str | None,
        typer.Option(help="Share of the elements each agent changes.", show_default="0.032,0.462,0.543"),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = 0,
    shard_size: Annotated[str, typer.Option(help="Most bytes of one file, for example 500MB.")] = "5GB",
    workers: Annotated[int | None, typer.Option(help="Threads.", show_default="one per CPU")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a synthetic base and agents in the shape of a real model.

    For trying full size without a download.
    """
    shares = parse_densities(densities)
    count = (len(shares) if shares else 3) if agents is None else agents
    with Bar(quiet) as bar:
        bar.begin("synth", 2 * find_shape(shape).parameters * (1 + count))
        report = synthesise(
            shape,
            out,
            agents=count,
            densities=shares,
            seed=seed,
            shard_size=parse_size(shard_size),
            workers=workers,
            progress=bar.advance,
        )
    with printing(f"The set is complete in {out}"):
        say(report if json else summary(report), as_json=json, quiet=quiet)


def parse_densities(text: str | None) -> list[float] | None:
    """The numbers of "0.03,0.4"; None for None.

    Raises:
        RecipeError: one is not a number.
    """
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise RecipeError(
            f"--densities: '{text}' is not a list of numbers",
            todo="Put commas between them: 0.032,0.462,0.543.",
            where=Where(path="--densities"),
        ) from None


def summary(report: SynthReport) -> str:
    """What was written where, and the command that looks at it."""
    content = f"a base and {len(report.agents)} agents in the shape of {report.shape}"
    lines = [
        f"Wrote {format_size(report.nbytes)}: {content}, {report.elements:,} elements each.",
        f"  {'base':<8} {report.base}",
    ]
    for name, path in report.agents.items():
        lines.append(f"  {name:<8} {path}  ({report.changed[name] / report.elements:.1%} changed)")
    return "\n".join([*lines, "Next:", f"  {probe_command(report)}"])


def probe_command(report: SynthReport) -> str:
    """The exact command that shows what the agents changed."""
    words = ["agentmerge", "probe", "--base", str(report.base)]
    for name, path in report.agents.items():
        words += ["--agent", f"{name}={path}"]
    return shlex.join(words)
