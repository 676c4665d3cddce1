"""The command line: parse, call, print. Whatever ends it early is told in one line, from its first import on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentmerge.cli.commands import app, function_of

__all__ = ["COMMANDS", "app", "function_of", "main"]

COMMANDS = {
    "demo": "Merge three tiny real agents that are inside the package, and see what happens.",
    "merge": "Merge agents into one checkpoint.",
    "probe": "See what the agents changed, without writing a model.",
    "check": "Say whether the sources fit together, without reading their weights, samples aside.",
    "push": "Put a merge on the Hugging Face hub.",
    "inspect": "Read back what a merge did, or what a packed delta holds.",
    "methods": "List the merging methods, or explain one.",
    "schema": "Print a JSON Schema, for editors and for checks.",
    "pack": "Write an agent as what it changed of its base: lossless, a fraction of the size.",
    "apply": "Make the agent of a packed delta and its base again.",
    "join": "Make packed deltas of one base one, without the base, where no two changed the same element.",
    "synth": "Write a synthetic base and agents in the shape of a real model.",
    "importance": "Measure which weights an agent's own answers depend on: the diagonal Fisher.",
    "grams": "Measure the inputs of layers: the base's, to keep what it can do; an agent's, for esm and regmean.",
    "harm": "Say which agents damage what the base could do, where, and what to do about it.",
    "eval": "Ask a model the questions of benchmarks and score its answers.",
    "eval doctor": "Say which benchmarks can run here, and how to get what is missing.",
    "eval compare": "Set evaluations side by side: tables, differences that are more than noise, and a verdict.",
    "eval fetch": "Fetch the data of a benchmark from the hub into a folder.",
    "eval convert-mbpp": "Turn MBPP's functions into programs that read and print, for the suite code.",
    "convert": "Turn a mergekit configuration into a recipe, and say what has no equal here.",
}
"""Every command and the first line of its docstring; it is the function of its name in the module of its name, with _
between words."""


def main() -> None:
    """The entry point: 0 done, 2 the user's mistake in one calm message, 1 our bug with its traceback."""
    from agentmerge.cli.process import calm

    with calm():
        from agentmerge.cli.commands import app

        app()


def __getattr__(name: str) -> Any:
    """What typer makes of the table, imported on first use: a signal may come before typer is there."""
    if name not in __all__:
        raise AttributeError(f"module 'agentmerge.cli' has no attribute {name!r}")
    from agentmerge.cli import commands

    return getattr(commands, name)
