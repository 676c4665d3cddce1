"""What several tests need: tiny checkpoints and the golden numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentmerge.testing import Sources, make_agents

if TYPE_CHECKING:
    from collections.abc import Callable

TESTS = Path(__file__).parent
GOLDEN = {"copy": TESTS / "golden", "shared": TESTS.parent / "../shared/golden"}


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
def contents() -> Callable[[Path], dict[str, bytes]]:
    """Every file of a folder by its relative path."""

    def read(folder: Path) -> dict[str, bytes]:
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    return read
