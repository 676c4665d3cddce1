"""A model on the hub of the tests: its commits, branches and tags, and who may see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha1
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

READER, WRITER = "hf_reader", "hf_writer"
"""Tokens: of somebody who may read what is private, and who may write as well."""


@dataclass
class Repo:
    """A model: its commits, oldest first, and who may see it."""

    commits: list[dict[str, bytes]] = field(default_factory=list)
    gated: bool = False
    private: bool = False
    members: tuple[str, ...] = (READER, WRITER)
    """The tokens that pass its gate."""
    tags: dict[str, int] = field(default_factory=dict)
    """The number of a commit by the name of a tag."""
    branches: dict[str, int] = field(default_factory=dict)
    """The number of the newest commit by the name of a branch."""

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Add a commit that holds these files to a branch; its id."""
        self.commits.append(dict(files))
        self.branches[branch] = len(self.commits) - 1
        return self.sha(self.branches[branch])

    def sha(self, number: int) -> str:
        return sha1(f"{id(self)} {number}".encode()).hexdigest()

    def at(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit that a branch, a tag or an id names."""
        names = {**self.branches, **self.tags, **{self.sha(i): i for i in range(len(self.commits))}}
        return (self.sha(names[revision]), self.commits[names[revision]]) if revision in names else None
