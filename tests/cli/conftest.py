"""A small synthetic set, and a way to run the command line as a user does."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from agentmerge.cli import main
from agentmerge.synth.write import synthesise

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Ran:
    """What a command printed and its exit code."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DIR/base, DIR/code, DIR/tool."""
    folder = tmp_path_factory.mktemp("synth") / "set"
    synthesise("tiny", folder, agents=2)
    return folder


@pytest.fixture
def sources(agents: Path) -> list[str]:
    """The options that name them."""
    return ["--base", f"{agents}/base", "--agent", f"code={agents}/code", "--agent", f"tool={agents}/tool"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run `agentmerge ARGS` in this process."""

    def call(*args: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["agentmerge", *args])
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        return Ran(int(stop.value.code or 0), printed.out, printed.err)

    return call
