"""A large file of the hub brought into its cache in one go or in several: what a killed process had is kept.

huggingface_hub 1.0 and later throw a partial file away. Here it has a name of its own among the cache's blobs, is
continued by range, and becomes the blob once it is whole; huggingface_hub then finds it and makes its link.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from agentmerge.errors import SourceError, Where
from agentmerge.files.positional import lock_exclusive
from agentmerge.hub.listing import cache_of

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.hub.listing import Listing

LARGE = 8 << 20  # bytes; smaller ones are fetched anew
LARGEST = 50_000_000_000
"""Bytes of a file that plain HTTP gives; beyond it huggingface_hub has its own way."""
PART = ".agentmerge.part"
_SHA256 = re.compile(r"[0-9a-f]{64}")


def bring(now: Listing, name: str) -> None:
    """Put a file into the cache as huggingface_hub keeps it.

    Raises:
        SourceError: what came has another checksum than the hub says.
        Exception: whatever huggingface_hub and its HTTP library raise.
    """
    from huggingface_hub import HfApi

    if LARGE <= now.sizes[name] <= LARGEST:
        _bring_blob(now, name)
    HfApi().hf_hub_download(now.model.name, name, revision=now.commit)


def _bring_blob(now: Listing, name: str) -> None:
    """Go on with the part of it that is here; leave it to huggingface_hub where another process is at it."""
    from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    url = hf_hub_url(now.model.name, name, revision=now.commit, endpoint=HfApi().endpoint)
    etag, size = get_hf_file_metadata(url).etag, now.sizes[name]
    if etag is None or not re.fullmatch(r"[\w.-]+", etag):
        return
    blob = cache_of(now.model) / "blobs" / etag
    blob.parent.mkdir(parents=True, exist_ok=True)
    part = blob.with_name(f"{etag}{PART}")
    if blob.exists() and not part.exists():
        return
    with part.open("ab") as file:
        if not lock_exclusive(file.fileno()):
            return
        if blob.exists():  # brought by another process, or for another commit
            part.unlink()
            return
        if (had := file.tell()) > size:
            file.truncate(had := 0)
        http_get(url, file, resume_size=had, headers=build_hf_headers(), expected_size=size)
        file.flush()
        if had and _SHA256.fullmatch(etag):
            _check(part, etag, now, name)
        part.replace(blob)


def _check(part: Path, sha256: str, now: Listing, name: str) -> None:
    """Raise SourceError unless a file that came in parts is what the hub has; it is thrown away then."""
    with part.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        part.unlink()
        raise SourceError(
            f"{now.model}: {name}: what came in parts has sha256 {found}",
            expected=sha256,
            todo="Run the same command again: it is fetched anew.",
            where=Where(source=str(now.model), path=name),
        )
