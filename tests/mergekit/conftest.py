"""A mergekit configuration as text in, a conversion out."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from agentmerge.mergekit import Conversion, convert_mergekit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def convert(tmp_path: Path) -> Callable[..., Conversion]:
    """Convert the text of a configuration."""

    def call(text: str, layers: int | None = None) -> Conversion:
        path = tmp_path / "mergekit.yml"
        path.write_text(dedent(text), encoding="utf-8")
        return convert_mergekit(path, layers)

    return call
