"""What several tests need: tiny checkpoints and the golden numbers."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads spin: on small matrices they cost 20 times as much

os.environ["HF_HUB_OFFLINE"] = "1"  # a test that mistypes a path must not ask the hub for it

import pytest

from agentmerge import kernels
from agentmerge.kernels import cpu
from agentmerge.testing import Sources, make_agents

TESTS = Path(__file__).parent
GOLDEN = {"copy": TESTS / "golden", "shared": TESTS.parent / "../shared/golden"}


LOOPS = ("full", "count", "ram", "ties", "linear", "region", "fisher", "given", "ram_extended", "stretched", "drop")
"""Whose compiling takes longest, where the compiler's cache is empty."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Each of several workers begins with another loop, so that every loop is compiled once, by one of them."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or not kernels.compiling():
        return
    first = int(worker.removeprefix("gw")) * len(LOOPS) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    cpu.load(*LOOPS[first:], *LOOPS[:first])


@pytest.fixture(params=sorted(GOLDEN), scope="session")
def golden(request: pytest.FixtureRequest) -> Path:
    """The golden numbers: the copy in this repository, and the originals beside it where they are."""
    root = GOLDEN[request.param]
    if not root.is_dir():
        pytest.skip("no ../shared/golden beside this checkout; tests/golden holds a copy of what is needed")
    return root


@pytest.fixture
def tiny(tmp_path: Path) -> Sources:
    """A base and three agents, bfloat16, one file each."""
    return make_agents(tmp_path / "in")


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests do not care what a power cut leaves behind, so they need not wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None, raising=False)
