"""What the suite `search` says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.eval.suite import Given
from agentmerge.eval.suites.search import Search

if TYPE_CHECKING:
    from pathlib import Path


def test_the_models_tokenizer_is_no_data_file(tmp_path: Path) -> None:
    """Two models with tokenizers of their own were asked the same questions."""
    (tmp_path / "tokenizer.json").write_text("{}")
    found = Search.make("paper", Given(tmp_path, str(tmp_path)), sets=(), endpoint="http://localhost:1")
    assert [file.name for file in found.data_files()] == ["http://localhost:1"]
