"""Threads of one process: what is told does not depend on which of them is faster."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import agentmerge
from agentmerge.engine import local
from agentmerge.testing import write_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.engine.runner import Unit

ROWS, WIDTH = 2048, 4
NAMES = ("large.weight", "small.weight")


@pytest.fixture
def broken(tmp_path: Path) -> dict[str, Any]:
    """A recipe of blocks of 2,048 elements; in the third of one tensor, and in another tensor, an agent has a NaN."""
    base = {NAMES[0]: np.ones((ROWS, WIDTH), np.float32), NAMES[1]: np.ones(WIDTH, np.float32)}
    agent = {name: array + np.float32(0.5) for name, array in base.items()}
    agent[NAMES[0]][ROWS // 2] = np.nan
    agent[NAMES[1]][0] = np.nan
    write_checkpoint(tmp_path / "base", base)
    write_checkpoint(tmp_path / "code", agent)
    return {
        "base": str(tmp_path / "base"),
        "agents": {"code": str(tmp_path / "code")},
        "method": "ram+",
        "run": {"workers": 4, "block_size": 8192},
    }


def test_of_several_problems_the_one_that_is_read_first_is_told(
    broken: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do_unit, later = local.do_unit, threading.Event()

    def reversed_unit(plan: Any, pass_: Any, survey: Any, unit: Unit, *rest: Any) -> Any:
        """The first problem waits for the last one."""
        if unit.block.tensor.name == NAMES[0] and unit.block.start == ROWS * WIDTH // 2:
            assert later.wait(10)
        answers = do_unit(plan, pass_, survey, unit, *rest)
        if unit.block.tensor.name == NAMES[1]:
            later.set()
        return answers

    monkeypatch.setattr(local, "do_unit", reversed_unit)
    with pytest.raises(agentmerge.MergeError) as caught:
        agentmerge.merge(broken, tmp_path / "out")
    assert f"{NAMES[0]}: agent 'code'" in str(caught.value)
    assert "has 4 NaN" in str(caught.value)


def test_a_thread_that_breaks_reaches_the_caller(
    broken: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(*_: Any) -> Any:
        raise ZeroDivisionError("in a thread")

    monkeypatch.setattr(local, "do_unit", breaking)
    with pytest.raises(ZeroDivisionError, match="in a thread"):
        agentmerge.merge(broken, tmp_path / "out")
