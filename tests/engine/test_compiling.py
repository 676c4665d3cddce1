"""Kernels compile beside other work; a slow compile is announced, and a failed one is an error."""

from __future__ import annotations

from threading import Event

import pytest

from agentmerge.engine import compiling
from agentmerge.engine.compiling import Compiling


class Said:
    """A watch that notes what it is told."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.begun = Event()

    def begin(self, phase: str, total: int, **_: float) -> None:
        self.phases.append(phase)
        self.begun.set()

    def advance(self, nbytes: int, **_: float) -> None:
        raise AssertionError


def test_a_quick_load_says_nothing() -> None:
    said = Said()
    Compiling(lambda: None).wait(said)
    assert said.phases == []


def test_a_slow_compile_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "PATIENCE", 0.0)
    said = Said()
    Compiling(lambda: said.begun.wait() and None).wait(said)
    assert said.phases == ["compiling the kernels, once on this machine"]


def test_a_failed_compile_is_an_error() -> None:
    def fail() -> None:
        raise RuntimeError("LLVM says no")

    with pytest.raises(RuntimeError, match="LLVM says no"):
        Compiling(fail).wait(Said())


def test_a_run_that_is_refused_waits_for_no_compiler() -> None:
    made: list[str] = []
    with Compiling(lambda: made.append("imported"), lambda: made.append("compiled")) as compiling:
        pass
    compiling.wait(Said())
    assert made in ([], ["imported"])


def test_a_run_that_goes_on_has_everything() -> None:
    made: list[str] = []
    with Compiling(lambda: made.append("imported"), lambda: made.append("compiled")) as compiling:
        compiling.begin()
        compiling.wait(Said())
    assert made == ["imported", "compiled"]
