"""Folders that hold no checkpoint but folders that do: a trainer's output, a hub cache, one folder too high."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agentmerge.sources.trainers import UNLORA, Unfinished, adapters_of, parts_at, unfinished

if TYPE_CHECKING:
    from pathlib import Path

DEEPEST = 5
MOST = 2000
"""Folders that are looked into; a data set beside the checkpoint may have more."""


def checkpoints_below(folder: Path) -> list[Path]:
    """The folders below that look like something to give instead, the likeliest first.

    Of a hub cache that is the snapshot that refs/main names; of a trainer's output the last step.
    """
    found: list[Path] = []
    level, seen = [folder], 0
    for _ in range(DEEPEST):
        level = [path for parent in level for path in _folders(parent)]
        seen += len(level)
        if not level or seen > MOST:
            break
        here = [path for path in level if _may_be_given(path)]
        found += here
        level = [path for path in level if path not in here]
    newest = _main(folder)
    return sorted(found, key=lambda path: (path != newest, *_order(path, folder)))


def _may_be_given(folder: Path) -> bool:
    """Whether a folder has whole weights in safetensors, or an adapter or a trainer's parts that can be read."""
    names = _names(folder)
    if {"adapter_config.json", "adapter_model.safetensors"} <= set(names) or parts_at(folder, names) is not None:
        return True
    weights = [name for name in names if name.endswith(".safetensors")]
    return bool(weights) and len(adapters_of(weights)) < len(weights) and not re.match(r"optim", weights[0])


def trained_parts_below(folder: Path) -> tuple[Path, Unfinished] | None:
    """The last folder below, or the one above, that holds a trainer's parts or an adapter; None without one."""
    level = [folder]
    looked = [folder.parent]
    for _ in range(3):
        level = [path for parent in level for path in _folders(parent)][:MOST]
        looked += level
    found = [(path, parts) for path in looked if (parts := _parts(path)) is not None]
    return max(found, key=lambda pair: _number(pair[0]), default=None)


def _parts(folder: Path) -> Unfinished | None:
    names = _names(folder)
    adapters = adapters_of(names)
    lora = Unfinished(f"a LoRA adapter ({', '.join(adapters)})", UNLORA) if adapters else None
    return unfinished(folder, names) or lora


def _order(path: Path, root: Path) -> tuple[int, list[int], str]:
    """Few levels first, then the greatest step, then by name."""
    parts = path.relative_to(root).parts
    return len(parts), [-number for number in _number(path)], str(path)


def _number(path: Path) -> list[int]:
    return [int(digits) for digits in re.findall(r"(?<![0-9a-f])\d+(?![0-9a-f])", str(path))]


def _main(folder: Path) -> Path | None:
    """The snapshot of a hub cache that its newest download gave."""
    try:
        return folder / "snapshots" / (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError):
        return None


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if not p.name.startswith(".") and p.is_dir() and not p.is_symlink())
    except OSError:
        return []


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []
