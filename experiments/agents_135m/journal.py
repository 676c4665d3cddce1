"""What a training run says: a line of JSON per step, and words for whoever watches."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Journal:
    """Writes at once, so that a run that is stopped has told all."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8")
        self._name, self._started = path.stem, time.perf_counter()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, record: dict[str, Any]) -> None:
        """A step; `seconds` since the start are added."""
        record = {**rounded(record), "seconds": round(time.perf_counter() - self._started, 2)}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def tell(self, words: dict[str, Any]) -> None:
        """To standard output."""
        print(self._name, f"{time.perf_counter() - self._started:.1f} s", rounded(words), flush=True)


def rounded(value: Any) -> Any:
    """Floats to five digits."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


def write_atomically(path: Path, value: Any) -> None:
    """JSON that is there whole or not at all."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)
