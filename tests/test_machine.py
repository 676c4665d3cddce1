"""How many CPUs there are is what this process may use of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from agentmerge import machine

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 6), ("200000 100000", 2), ("150000 100000", 2), ("1000 100000", 1), ("900000 100000", 6), ("?", 6)],
)
def test_a_containers_quota_limits_the_cpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, expected: int
) -> None:
    (tmp_path / "cpu.max").write_text(quota + "\n")
    monkeypatch.setattr(machine, "QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    assert machine.available_cpus() == expected


def test_without_pinning_or_a_quota_all_of_them_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "QUOTA", tmp_path / "none")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert machine.available_cpus() == 7
