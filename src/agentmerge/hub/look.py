"""A model of the hub looked at from afar: config and tokenizer as they are, of its weights the headers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from agentmerge.errors import Note, Where
from agentmerge.files.torch_header import SUFFIXES
from agentmerge.hub.afar import UnseenError, put_headers
from agentmerge.hub.chosen import beside_weights
from agentmerge.hub.fetch import fetch, weights_in
from agentmerge.hub.listing import snapshot_of
from agentmerge.progress import Silent
from agentmerge.sources.hub import Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import ExitStack

    from agentmerge.hub.listing import Listing


def looked_at(text: str, stack: ExitStack, pins: Mapping[str, str]) -> Snapshot | None:
    """What a source is on the hub, without the data of its weights; None where the source is no id.

    Args:
        text: what the user wrote.
        stack: what is here of it is removed with.
        pins: as `fetched` has them.

    Raises:
        UnseenError: its weights are PyTorch files, whose headers lie at their ends.
        SourceError: it is not there, or not allowed.
    """
    return snapshot_of(text, pins, partial(_look, stack=stack))


def _look(now: Listing, _: str, stack: ExitStack) -> Snapshot:
    beside = beside_weights(now.sizes)
    fetch(now, beside, Silent())
    weights = weights_in(now)
    lacking = [name for name in weights if not now.here(name)]
    if not lacking:
        return Snapshot(now.folder, now.commit)
    missing = sum(now.sizes[name] for name in lacking)
    note = Note(f"{now.model}: a merge fetches {missing:,} bytes of commit {now.commit} first", severity="note")
    folder = _headers(now, beside, weights, stack)
    return Snapshot(folder, now.commit, (note,), missing, headers_only=True)


def _headers(now: Listing, beside: list[str], weights: list[str], stack: ExitStack) -> Path:
    """A folder of links to what lies beside the weights, and of their headers."""
    if torch := [name for name in weights if name.endswith(SUFFIXES)]:
        total = sum(now.sizes[name] for name in torch)
        raise UnseenError(
            f"{now.model}: its weights are PyTorch files, {total:,} bytes, which can't be looked at from afar",
            todo=f"A merge fetches them and looks then. To do so now: hf download {now.model.name}",
            where=Where(source=str(now.model)),
        )
    folder = stack.enter_context(TemporaryDirectory(prefix="agentmerge-"))
    for name in beside:
        link = Path(folder) / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to((now.folder / name).absolute())
    return put_headers(now, weights, folder)
