"""Which of many globs fit a name, without trying each of them."""

from __future__ import annotations

import re
from fnmatch import translate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

WILD = re.compile(r"\[!?\]?[^\]]*\]|[*?\[]")
"""What of a glob does not stand for itself, and what may not."""


class Globs:
    """Globs, each of which is tried only on names that hold its longest literal part."""

    def __init__(self, globs: Iterable[str]) -> None:
        self._exact: set[str] = set()
        self._by_literal: dict[str, list[str]] = {}
        self._compiled: dict[str, re.Pattern[str]] = {}
        for glob in dict.fromkeys(globs):
            if WILD.search(glob):
                self._by_literal.setdefault(max(WILD.split(glob), key=len), []).append(glob)
            else:
                self._exact.add(glob)
        self._lengths = sorted({len(literal) for literal in self._by_literal})

    def fitting(self, name: str) -> list[str]:
        """The globs that fit the whole name, capitals told from small letters as in the name; in no order."""
        parts = {name[i : i + n] for n in self._lengths for i in range(len(name) - n + 1)}
        tried = [glob for part in parts & self._by_literal.keys() for glob in self._by_literal[part]]
        found = [glob for glob in tried if self._pattern(glob).match(name)]
        return [*found, name] if name in self._exact else found

    def _pattern(self, glob: str) -> re.Pattern[str]:
        if glob not in self._compiled:
            self._compiled[glob] = re.compile(translate(glob))
        return self._compiled[glob]
