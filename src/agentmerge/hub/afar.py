"""The headers of weight files on the hub, read in ranges: enough to plan a merge before anything is fetched."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from agentmerge.errors import SourceError, Where
from agentmerge.files.header import LIMIT
from agentmerge.hub.answers import reading
from agentmerge.sources.packed_opening import told_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.hub.listing import Listing

FIRST = 1 << 18  # bytes; most headers end before
AT_ONCE = 8
PATIENCE = 30.0  # seconds
MOST = 1 << 28
"""Bytes of the files in a packed delta that are looked at."""


class UnseenError(SourceError):
    """What a merge would fetch can't be looked at before."""


def put_headers(now: Listing, names: Sequence[str], folder: str) -> Path:
    """Files with the headers and the sizes of safetensors files on the hub, and a hole where their data are.

    Of a packed delta what tells the rest of it, which lies at its end, is there, too.

    Args:
        now: the commit.
        names: of the files.
        folder: that they are put into; for those who only read headers.

    Returns:
        The folder.

    Raises:
        UnseenError: a packed delta keeps too much beside its numbers.
        SourceError: the hub refuses it, or can't be reached.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, header in zip(names, pool.map(lambda name: _header(now, name), names), strict=True):
            path = Path(folder) / name
            path.write_bytes(header)
            os.truncate(path, now.sizes[name])
            if (start := told_from(path)) is not None:
                _put_end(now, path, start)
    return Path(folder)


def _put_end(now: Listing, path: Path, start: int) -> None:
    """Everything from a place on, in a file that has its header."""
    size = now.sizes[path.name]
    if size - start > MOST:
        raise UnseenError(
            f"{now.model}: {path.name}, a packed delta, keeps {size - start:,} bytes of files",
            expected=f"at most {MOST:,} to look at from afar",
            todo=f"A merge fetches them and looks then. To do so now: hf download {now.model.name}",
            where=Where(source=str(now.model)),
        )
    with path.open("r+b") as file:
        file.seek(start)
        file.write(_range(now, path.name, size, start))


def _header(now: Listing, name: str) -> bytes:
    """The first bytes of a safetensors file, at least to the end of its header."""
    size = now.sizes[name]
    start = _range(now, name, min(FIRST, size))
    needed = 8 + int.from_bytes(start[:8], "little")
    if needed <= len(start) or needed > min(size, LIMIT):  # the second is told by whoever reads the header
        return start
    return _range(now, name, needed)


def _range(now: Listing, name: str, stop: int, start: int = 0) -> bytes:
    """The bytes [start, stop) of a file."""
    from huggingface_hub import HfApi, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    if stop <= start:
        return b""
    with reading(now.model, name):
        url = hf_hub_url(now.model.name, name, revision=now.commit, endpoint=HfApi().endpoint)
        headers = {**build_hf_headers(), "Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        answer = get_session().get(url, headers=headers, timeout=PATIENCE)
        hf_raise_for_status(answer)
    return bytes(answer.content[: stop - start])
