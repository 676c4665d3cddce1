"""The modules of an experiment, for its tests."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parents[2] / "experiments" / "agents_135m"


@pytest.fixture(scope="module")
def experiment() -> Iterator[Any]:
    """Its modules, which are scripts beside each other."""
    before, path = set(sys.modules), list(sys.path)
    sys.path.insert(0, str(FOLDER))
    yield import_module
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
