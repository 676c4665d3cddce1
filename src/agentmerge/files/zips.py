"""Where the members of an uncompressed zip archive lie, which may be a part of a file."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentmerge.files.positional import read_into

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCAL = struct.Struct("<4s22sHH")
"""The header before a member: its magic, what the directory says again, the lengths of name and extra field."""
MAGIC = b"PK\x03\x04"
BROKEN = (
    zipfile.BadZipFile, NotImplementedError, ValueError, LookupError, struct.error, OverflowError, EOFError,
    RuntimeError,
)  # fmt: skip
"""What zipfile raises for one broken archive or another."""


@dataclass(frozen=True, slots=True)
class Member:
    """The bytes [begin, end) of the file."""

    begin: int
    end: int


class ZipRefused(ValueError):
    """It is no archive whose members lie in it as they are."""


def members(fd: int, within: Member | None = None) -> Mapping[str, Member]:
    """The members of an archive by name.

    Args:
        fd: opened for reading.
        within: the part of the file that is the archive; None for all of it.

    Raises:
        ZipRefused: it is broken, or a member is compressed, encrypted or there twice.
        OSError: it can't be read.
    """
    span = within or Member(0, os.fstat(fd).st_size)
    try:
        with zipfile.ZipFile(io.BufferedReader(_Window(fd, span))) as archive:
            infos = archive.infolist()
    except BROKEN as error:
        raise ZipRefused(f"a broken zip archive: {str(error)[:120] or type(error).__name__}") from None
    found: dict[str, Member] = {}
    for info in infos:
        if info.filename in found:
            raise ZipRefused(f"a zip archive with two members {info.filename[:120]!r}")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
            raise ZipRefused(f"a zip archive whose member {info.filename[:120]!r} is compressed or encrypted")
        begin = _data(fd, info.header_offset, span)
        if not begin <= begin + info.file_size <= span.end:
            raise ZipRefused(f"truncated: its member {info.filename[:120]!r} ends behind the file")
        found[info.filename] = Member(begin, begin + info.file_size)
    return found


class _Window(io.RawIOBase):
    """A part of a file, as a file that is read from front to back or at any place."""

    def __init__(self, fd: int, span: Member) -> None:
        self._fd, self._span, self._at = fd, span, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._span.end - self._span.begin}[whence]
        if start + offset < 0:
            raise ValueError("a place before the archive")
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._span.end - self._span.begin - self._at))
        read_into(self._fd, memoryview(buffer)[:count], self._span.begin + self._at)
        self._at += count
        return count


def _data(fd: int, offset: int, span: Member) -> int:
    """Where the bytes of the member begin whose header lies at `offset` of the archive."""
    if not 0 <= offset <= span.end - span.begin - LOCAL.size:
        raise ZipRefused("a broken zip archive: a member that lies behind the file")
    raw = bytearray(LOCAL.size)
    read_into(fd, raw, span.begin + offset)
    magic, _, name, extra = LOCAL.unpack(raw)
    if magic != MAGIC:
        raise ZipRefused("a broken zip archive: no member where its directory says")
    return span.begin + offset + LOCAL.size + int(name) + int(extra)
