"""Whose tokenizer the output gets: it must fit the output's rows and the other agents' tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.alike.rows import rows_of
from agentmerge.alike.tokens import compare, content_of, quoted, token_ids
from agentmerge.errors import AlignmentError, SourceError, role_of
from agentmerge.sources.beside import has_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentmerge.alike.family import Family


def one_tokenizer(family: Family) -> Family:
    """See that the output's tokenizer, where it is an agent's, fits the output's rows, and those of every agent."""
    donor, folders = family.tokenizer_from, family.folders
    if donor == "base" or donor not in folders:  # a check goes on without a donor that is not there
        return family
    ids = tokens_of_donor(donor, folders, max(rows_of(family.base).values(), default=0))
    if ids is None:
        return family
    rowed = rows_of(family.base)
    read = {name for name in family.agents if any(family.reads(tensor, name) for tensor in rowed)}
    return family.each(lambda name, _: check_tokens(name, folders, donor, ids) if name in read else None)[0]


def tokens_of_donor(donor: str, folders: Mapping[str, Path], rows: int) -> dict[str, int] | None:
    """The tokens of the output; None where its tokenizer is of a kind that can't be read.

    Args:
        donor: an agent's name.
        folders: by agent, and of the "base".
        rows: of the output's embedding; 0 where it has none.

    Raises:
        SourceError: the donor has no tokenizer.
        AlignmentError: it has more tokens than the output has rows.
    """
    folder = folders[donor]
    if has_tokenizer(folders["base"]) and not has_tokenizer(folder):
        raise SourceError(
            f"inputs.tokenizer_from: {role_of(donor)} ({folder}) has no tokenizer files",
            expected="some",
            todo="Copy them there, or take another's.",
        )
    ids = token_ids(folder)
    most = max((ids or {}).values(), default=-1)
    if rows and most >= rows:
        raise AlignmentError(
            f"inputs.tokenizer_from: the tokenizer of {role_of(donor)} has ids up to {most}, the output has {rows} "
            "rows",
            expected="a row for every token",
            todo="Pass --vocab union, or take the base's tokenizer.",
        )
    return ids


def check_tokens(name: str, folders: Mapping[str, Path], donor: str, ids: Mapping[str, int]) -> None:
    """Raise AlignmentError where another agent has tokens in the place of the donor's.

    Args:
        name: of the agent.
        folders: by agent.
        donor: whose tokenizer the output gets.
        ids: the donor's tokens.
    """
    same = name == donor or content_of(folders[name]) == content_of(folders[donor])
    theirs = None if same else token_ids(folders[name])
    moved = compare(ids, theirs).moved if theirs is not None else ()
    if moved:
        raise AlignmentError(
            f"agent '{name}' has {len(moved)} tokens under other ids than {role_of(donor)}, whose tokenizer the output "
            f"gets: {quoted(moved)};",
            expected="the same ids",
            todo="Their rows can't be merged: leave the embedding and head of "
            f"agent '{name}' out with rules (skip: {name}), or take the base's tokenizer.",
        )
