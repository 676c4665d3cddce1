"""Read, check and write the header of one safetensors file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from agentmerge.errors import SourceError, Where, did_you_mean
from agentmerge.files.documents import LFS, LFS_TODO, abbreviated, strict_json
from agentmerge.files.kinds import text_kind, weights_of
from agentmerge.files.os_errors import AGAIN
from agentmerge.files.positional import read_into
from agentmerge.tensors import DTYPES, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

LIMIT = 100_000_000  # bytes of JSON; the safetensors library refuses more
SUFFIX = ".safetensors"
ALIGNMENT = 64  # bytes; the data of a file that we write starts at a multiple of it
TOO_MANY = 2**63  # elements
METADATA = "__metadata__"
FIELDS = ("dtype", "shape", "data_offsets")
UNSUPPORTED = frozenset({"F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"})
"""Dtypes that the safetensors format has and agentmerge does not read."""

CONVERT = (
    "Convert it to safetensors first: load it in transformers, see that this tells of no missing or unexpected "
    "weights, and call save_pretrained."
)
FOREIGN = {
    LFS: ("a Git LFS pointer", "the file itself", LFS_TODO),
    b"PK\x03\x04": (
        "a zip file, such as a PyTorch (zip) file",
        "safetensors",
        "If torch.save wrote it, call it .bin or .pt, as what it is; unpack any other archive and give its folder.",
    ),
    b"\x80\x02": ("a PyTorch (pickle) file", "safetensors", CONVERT),
    b"GGUF": ("a GGUF file", "safetensors", "Merge the safetensors checkpoint that it was made from."),
}
"""How files of other kinds begin: what they are, what was expected, what to do."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor and its bytes [begin, end), counted from the header's data_start."""

    spec: TensorSpec
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Strided:
    """How a tensor lies where not row by row: element [i, j, ...] at i * strides[0] + j * strides[1] + ..."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""


@dataclass(frozen=True, slots=True)
class Header:
    """What one safetensors file holds."""

    tensors: Mapping[str, TensorEntry]
    """In the order of their data."""
    metadata: Mapping[str, str]
    data_start: int
    """Bytes before the data."""
    sha256: str
    """Of those bytes, as hexadecimal."""
    strided: Mapping[str, Strided] = field(default_factory=dict)
    """Tensors whose entry is the range that they lie over; only PyTorch files have some."""


def header_of(fd: int, path: Path) -> Header:
    """Read and check the header of an open file.

    Args:
        fd: opened for reading.
        path: for messages only.

    Raises:
        SourceError: whatever is wrong with the header.
        OSError: the file can't be read.
        ShortRead: it ends in the middle of the header.
    """
    size = os.fstat(fd).st_size
    return parsed(header_bytes(fd, path), size, path)


def header_bytes(fd: int, path: Path) -> bytes:
    """The first bytes of an open file, up to its data; as for `header_of`, but unread."""
    size = os.fstat(fd).st_size
    head = bytearray(min(size, 32))
    read_into(fd, head, 0)
    raw = bytearray(8 + _json_length(bytes(head), size, path))
    read_into(fd, raw, 0)
    return bytes(raw)


@lru_cache(maxsize=4)  # a file is asked what kind of source it is before it is opened as one
def parsed(raw: bytes, size: int | None, path: Path) -> Header:
    """What the first bytes of a file say.

    Args:
        raw: up to its data.
        size: bytes of the file; None where nothing but its header is there.
        path: for messages only.

    Raises:
        SourceError: whatever is wrong with the header.
    """
    content = strict_json(raw[8:], f"{path}: its header", Where(path=str(path)))
    metadata = _metadata(content.pop(METADATA, {}), path)
    entries = [_entry(value, Where(tensor=name, path=str(path))) for name, value in content.items()]
    described = max((entry.end for entry in entries), default=0)
    tensors = _in_data_order(entries, described if size is None else size - len(raw), path)
    return Header(tensors, metadata, len(raw), sha256(raw).hexdigest())


def encode_header(specs: Sequence[TensorSpec], metadata: Mapping[str, str], least: int = 0) -> bytes:
    """The first bytes of a safetensors file: its data follows in the order of `specs`, without gaps.

    Args:
        specs: of the tensors.
        metadata: texts by name.
        least: bytes to which it is filled up with spaces, a multiple of 64.

    Returns:
        Length (8 bytes), JSON and spaces; a multiple of 64 bytes.

    Raises:
        ValueError: two tensors of one name, or one named `__metadata__`.
    """
    content: dict[str, Any] = {METADATA: dict(metadata)}
    end = 0
    for spec in specs:
        if spec.name in content:
            raise ValueError(f"the tensor name {abbreviated(spec.name)} is taken, expected every name once")
        begin, end = end, end + spec.nbytes
        content[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [begin, end]}
    if not metadata:
        del content[METADATA]
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * max(-(8 + len(text)) % ALIGNMENT, least - 8 - len(text))
    return len(text).to_bytes(8, "little") + text


def _json_length(head: bytes, size: int, path: Path) -> int:
    where = Where(path=str(path))
    if size < 8:
        found = f"{path}: {f'{size} bytes' if size else 'an empty file'}"
        raise SourceError(found, expected="at least the 8 bytes of a safetensors length", todo=AGAIN, where=where)
    length = int.from_bytes(head[:8], "little")
    if length <= min(size - 8, LIMIT):
        return length
    for magic, (kind, expected, todo) in FOREIGN.items():  # only now: a header of 640 bytes starts like a pickle
        if head.startswith(magic):
            raise SourceError(f"{path}: {kind}", expected=expected, todo=todo, where=where)
    if kind := text_kind(head):
        raise SourceError(f"{path}: {kind}", expected="safetensors", todo=weights_of(path, (SUFFIX,)), where=where)
    if length > LIMIT and path.suffix and path.suffix != SUFFIX:
        found, todo = f"{path}: a {path.suffix} file, which is no safetensors", weights_of(path, (SUFFIX,))
        raise SourceError(found, expected="safetensors", todo=todo, where=where)
    if length > LIMIT:
        found = f"{path}: a header of {length} bytes"
        raise SourceError(found, expected=f"at most {LIMIT}", todo=AGAIN, where=where)
    found = f"{path}: truncated: {length + 8 - size} bytes of its header are missing"
    raise SourceError(found, expected=str(length), todo=AGAIN, where=where)


def _metadata(found: object, path: Path) -> dict[str, str]:
    if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
        return found
    text, where = f"{path}: {METADATA} is {abbreviated(found)}", Where(path=str(path))
    raise SourceError(text, expected="names with texts", todo=AGAIN, where=where)


def _entry(value: object, where: Where) -> TensorEntry:
    place = _place(where)
    if not isinstance(value, dict) or value.keys() != set(FIELDS):
        found, expected = f"{place} is {abbreviated(value)}", f"exactly {', '.join(FIELDS)}"
        raise SourceError(found, expected=expected, todo=AGAIN, where=where)
    spec = TensorSpec(where.tensor, _dtype(value["dtype"], where), _shape(value["shape"], where))
    offsets = value["data_offsets"]
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        found = f"{place} has data_offsets {abbreviated(offsets)}"
        raise SourceError(found, expected="[begin, end]", todo=AGAIN, where=where)
    begin, end = offsets
    if end - begin != spec.nbytes:
        taken = f"{spec.dtype} {abbreviated(list(spec.shape))} takes {spec.nbytes}"
        raise SourceError(f"{place} has {end - begin} bytes (data_offsets), but {taken}", todo=AGAIN, where=where)
    return TensorEntry(spec, begin, end)


def _place(where: Where) -> str:
    return f"{where.path}: tensor {abbreviated(where.tensor)}"


def _dtype(found: object, where: Where) -> str:
    if isinstance(found, str) and found in DTYPES:
        return found
    text = f"{_place(where)} has dtype {abbreviated(found)}"
    if isinstance(found, str) and found in UNSUPPORTED:
        todo = "Use a checkpoint in a supported dtype, for example BF16."
        raise SourceError(f"{_place(where)} has dtype {found}, which is not supported", todo=todo, where=where)
    hint = did_you_mean(str(found)[:32].upper() if isinstance(found, str) else "", DTYPES)
    raise SourceError(text, expected="a safetensors dtype", todo=hint.strip(), where=where)


def _shape(found: Any, where: Where) -> tuple[int, ...]:
    if not _naturals(found):
        text = f"{_place(where)} has shape {abbreviated(found)}"
        raise SourceError(text, expected="integers from 0 on", todo=AGAIN, where=where)
    elements = 1
    for length in found:
        elements *= length
        if max(elements, length) >= TOO_MANY:  # stops early: the product of a long list would take minutes
            text = f"{_place(where)} has shape {abbreviated(found)}"
            raise SourceError(text, expected="under 2^63 elements", todo=AGAIN, where=where)
    return tuple(found)


def _naturals(found: object) -> bool:
    return isinstance(found, list) and all(type(number) is int and number >= 0 for number in found)


def _in_data_order(entries: Iterable[TensorEntry], available: int, path: Path) -> dict[str, TensorEntry]:
    tensors: dict[str, TensorEntry] = {}
    cursor = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != cursor:
            where = Where(tensor=entry.spec.name, path=str(path))
            how = "overlaps the one before it" if entry.begin < cursor else "leaves a gap before it"
            found = f"{_place(where)} {how}: it begins at byte {entry.begin} of the data"
            raise SourceError(found, expected=str(cursor), todo=AGAIN, where=where)
        cursor = entry.end
        tensors[entry.spec.name] = entry
    _check_end(tensors, cursor, available, path)
    return tensors


def _check_end(tensors: Mapping[str, TensorEntry], described: int, available: int, path: Path) -> None:
    where = Where(path=str(path))
    if described > available:
        first = next(abbreviated(name) for name, entry in tensors.items() if entry.end > available)
        raise SourceError(
            f"{path}: truncated: {described - available} bytes are missing, from tensor {first} on: "
            f"the header describes {described} bytes of data, found {available}",
            todo=AGAIN,
            where=where,
        )
    if described < available:
        found = f"{path}: {available - described} bytes more than the header describes"
        raise SourceError(found, todo=AGAIN, where=where)
