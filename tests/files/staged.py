"""A staging folder that is full, and what lies in a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.files.staging import Staging, write_file

if TYPE_CHECKING:
    from pathlib import Path

NEW = {"model.safetensors": b"new", "tokenizer/vocab.txt": b"words", "config.json": b"{}"}
ORDER = ("model.safetensors", "tokenizer", "config.json")


def filled(out: Path, *, overwrite: bool = False) -> Staging:
    """The staging folder of OUT with everything of NEW in it."""
    staging = Staging(out, overwrite=overwrite)
    staging.create()
    for name, content in NEW.items():
        (staging.folder / name).parent.mkdir(exist_ok=True)
        write_file(staging.folder / name, content)
    (staging.folder / ".journal.jsonl").write_text("{}")
    return staging


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder by its relative path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
