"""Where the members of an uncompressed zip archive lie."""

from __future__ import annotations

import os
import struct
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    """The bytes [begin, end) of an archive's file."""

    begin: int
    end: int


class ZipRefused(ValueError):
    """It is no archive whose members lie in it as they are."""


def members(fd: int) -> Mapping[str, Member]:
    """The members of an archive by name.

    Raises:
        ZipRefused: it is broken, or a member is compressed, encrypted or there twice.
        OSError: it can't be read.
    """
    size = os.fstat(fd).st_size
    try:
        with open(os.dup(fd), "rb") as file, zipfile.ZipFile(file) as archive:  # noqa: PTH123 - a descriptor
            infos = archive.infolist()
    except BROKEN as error:
        raise ZipRefused(f"a broken zip archive: {str(error)[:120] or type(error).__name__}") from None
    found: dict[str, Member] = {}
    for info in infos:
        if info.filename in found:
            raise ZipRefused(f"a zip archive with two members {info.filename[:120]!r}")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.compress_size != info.file_size:
            raise ZipRefused(f"a zip archive whose member {info.filename[:120]!r} is compressed or encrypted")
        begin = _data(fd, info.header_offset, size)
        if not begin <= begin + info.file_size <= size:
            raise ZipRefused(f"truncated: its member {info.filename[:120]!r} ends behind the file")
        found[info.filename] = Member(begin, begin + info.file_size)
    return found


def _data(fd: int, offset: int, size: int) -> int:
    """Where the bytes of the member begin whose header lies at `offset`."""
    if not 0 <= offset <= size - LOCAL.size:
        raise ZipRefused("a broken zip archive: a member that lies behind the file")
    raw = bytearray(LOCAL.size)
    read_into(fd, raw, offset)
    magic, _, name, extra = LOCAL.unpack(raw)
    if magic != MAGIC:
        raise ZipRefused("a broken zip archive: no member where its directory says")
    return offset + LOCAL.size + int(name) + int(extra)
