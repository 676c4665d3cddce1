"""What an archive of torch.save holds: one pickle, read without running anything of it, and storages of numbers.

    ARCHIVE/data.pkl       a pickle of which only known records are read
    ARCHIVE/data/KEY       the numbers of storage KEY, stored as they are
    ARCHIVE/byteorder      little

An archive is a file of its own, or a part of one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NoReturn

from agentmerge.errors import SourceError, Where
from agentmerge.files.documents import LFS, LFS_TODO, abbreviated
from agentmerge.files.header import CONVERT, FOREIGN, LIMIT
from agentmerge.files.kinds import text_kind, weights_of
from agentmerge.files.os_errors import AGAIN
from agentmerge.files.pickles import PickleRefused, described
from agentmerge.files.positional import read_into
from agentmerge.files.zips import MAGIC, Member, ZipRefused, members

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from pathlib import Path

LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""How torch.save began before 1.6."""
RESAVE = (
    "Save it again with torch 1.6 or newer: `torch.save(torch.load(FILE, weights_only=True), NEW)`, or as safetensors."
)
UNTRUSTED = (
    "Nothing of it was run. A state dict of tensors needs no such call: do not load this file with pickle or "
    "weights_only=False unless you trust whoever made it; ask for safetensors."
)


@dataclass(frozen=True)
class Archive:
    """One archive."""

    value: Any
    """What its pickle describes."""
    storages: Mapping[str, Member]
    """Where their numbers lie, by key."""
    sha256: str
    """Of the pickle and of where the storages lie, as hexadecimal."""


def read_archive(
    fd: int, path: Path, calls: Container[str], records: Container[str] = (), within: Member | None = None
) -> Archive:
    """Read what describes the data of an archive.

    Args:
        fd: opened for reading.
        path: for messages.
        calls: see `pickles.described`.
        records: see there.
        within: the part of the file that is the archive; None for all of it.

    Raises:
        SourceError: whatever is wrong with it.
        OSError: it can't be read.
    """
    _check_kind(fd, path, within or Member(0, os.fstat(fd).st_size))
    try:
        parts = members(fd, within)
        root = next(name for name in parts if name == "data.pkl" or name.endswith("/data.pkl"))[: -len("data.pkl")]
        raw = _content(fd, parts[f"{root}data.pkl"])
        order = _content(fd, parts[f"{root}byteorder"]) if f"{root}byteorder" in parts else b"little"
    except ZipRefused as error:
        refuse(path, str(error), todo=AGAIN)
    except StopIteration:
        refuse(path, "a zip archive without data.pkl", "a file of torch.save", CONVERT)
    if order != b"little":
        refuse(path, f"numbers of byte order {abbreviated(order)}", "little", CONVERT)
    begin = f"{root}data/"
    storages = {key.removeprefix(begin): part for key, part in parts.items() if key.startswith(begin)}
    places = "".join(f"{key}\t{part.begin}\t{part.end}\n" for key, part in sorted(storages.items()))
    digest = sha256(raw + places.encode("utf-8", "surrogatepass")).hexdigest()
    return Archive(read_pickle(raw, path, calls, records), storages, digest)


def read_pickle(raw: bytes, path: Path, calls: Container[str], records: Container[str] = ()) -> Any:
    """`pickles.described`, with its refusals as errors of a file.

    Raises:
        SourceError: it is broken, or asks for more than data.
    """
    try:
        return described(raw, calls, records)
    except PickleRefused as error:
        text = f"its pickle is refused: {error}"
        refuse(path, text, "tensors by name", AGAIN if "broken" in str(error) else UNTRUSTED)


def refuse(path: Path, found: str, expected: str = "", todo: str = "") -> NoReturn:
    """Raise SourceError for a file."""
    raise SourceError(f"{path}: {found}", expected=expected, todo=todo, where=Where(path=str(path)))


def _check_kind(fd: int, path: Path, span: Member) -> None:
    head = bytearray(min(span.end - span.begin, 32))
    read_into(fd, head, span.begin)
    if head.startswith(MAGIC):
        return
    if head.startswith(LFS):
        refuse(path, "a Git LFS pointer", "the file itself", LFS_TODO)
    if head.startswith(LEGACY[:6]):
        refuse(path, "a file of torch.save from before torch 1.6, which is no zip archive", "a newer one", RESAVE)
    if head[:1] == b"\x80":
        refuse(path, "a bare pickle, which is no file of torch.save", "a zip archive of tensors", CONVERT)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= LIMIT:
        refuse(path, "a safetensors file", "a file of torch.save", "Call it .safetensors, as what it is.")
    if head.startswith(b"GGUF"):
        refuse(path, *FOREIGN[b"GGUF"])
    if found := text_kind(bytes(head)):
        refuse(path, found, "a file of torch.save", weights_of(path, (path.suffix,)))
    refuse(path, "an empty file" if not head else "no zip archive", "a file of torch.save", AGAIN)


def _content(fd: int, member: Member) -> bytes:
    if member.end - member.begin > LIMIT:
        raise ZipRefused(f"a pickle of {member.end - member.begin} bytes, expected at most {LIMIT}")
    raw = bytearray(member.end - member.begin)
    read_into(fd, raw, member.begin)
    return bytes(raw)
