"""The command `agentmerge eval doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentmerge.cli.console import say
from agentmerge.cli.options import Json
from agentmerge.cli.table import Column, Table
from agentmerge.eval.doctor import ENGINES, diagnose
from agentmerge.eval.suite import Given

if TYPE_CHECKING:
    from agentmerge.eval.doctor import Diagnosis


def eval_doctor(
    data_dir: Annotated[Path | None, typer.Option(help="Folder of the data files.", show_default=False)] = None,
    json: Json = False,
) -> None:
    """Say which benchmarks can run here, and how to get what is missing."""
    found = diagnose(Given(data_dir))
    say(found if json else parts(found), as_json=json)


def parts(found: Diagnosis) -> list[Any]:
    """A row per suite and per engine."""
    suites = Table("Suites", [Column("suite", "name"), Column("domain", "name"), Column("state", "text")])
    for name, state in found.suites.items():
        versions = ", ".join(f"{harness} {version}" for harness, version in state.versions.items())
        ready = f"ready{f' ({versions})' if versions else ''}; presets {', '.join(state.presets)}"
        suites.add(name, state.domain, " ".join(state.problems) or ready)
    engines = Table(
        "Who answers in this process (a server by --server needs none of them)",
        [Column("engine", "name"), Column("version", "name"), Column("if it is missing", "text")],
    )
    for name, version in found.engines.items():
        engines.add(name, version or "-", "" if version else ENGINES[name])
    return [suites, engines]
