"""Read, check and write the header of one safetensors file. Knows no folders, no index and no tensor data."""

from __future__ import annotations

import json
import os
import reprlib
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NoReturn

from agentmerge.errors import MergeError, SourceError, SourceNotFoundError, did_you_mean
from agentmerge.files.positional import ShortRead, open_to_read, read_into
from agentmerge.tensors import DTYPES, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

LIMIT = 100_000_000  # bytes of JSON; the safetensors library refuses more
ALIGNMENT = 64  # bytes; the data of a file that we write starts at a multiple of it
TOO_MANY = 2**63  # elements
METADATA = "__metadata__"
FIELDS = ("dtype", "shape", "data_offsets")
UNSUPPORTED = frozenset({"F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"})
"""Dtypes that the safetensors format has and agentmerge does not read."""

AGAIN = "The file is damaged: download or save it again."
CONVERT = "Convert it to safetensors first: load it in transformers and call save_pretrained."
LFS = b"version https://git-lfs"
FOREIGN = {
    LFS: "a Git LFS pointer, expected the file itself. Run `git lfs pull` in its folder, or `hf download`.",
    b"PK\x03\x04": f"a PyTorch (zip) file, expected safetensors. {CONVERT}",
    b"\x80\x02": f"a PyTorch (pickle) file, expected safetensors. {CONVERT}",
    b"GGUF": "a GGUF file, expected safetensors. Merge the safetensors checkpoint that it was made from.",
}

_REPR = reprlib.Repr()  # limits depth and length: a hostile value can't flood its own message
_REPR.maxstring, _REPR.maxother, _REPR.maxlist, _REPR.maxdict = 120, 80, 8, 8


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor and its bytes [begin, end), counted from the header's data_start."""

    spec: TensorSpec
    begin: int
    end: int


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


def read_header(path: Path) -> Header:
    """Read and check the header of a safetensors file.

    Raises:
        SourceError: whatever is wrong with the file, by name; never another exception.
    """
    with naming(str(path)):
        fd = open_to_read(path)
        try:
            return header_of(fd, path)
        finally:
            os.close(fd)


def header_of(fd: int, path: Path) -> Header:
    """The header of an open file; `path` is for messages only. Raises SourceError, OSError and ShortRead."""
    size = os.fstat(fd).st_size
    head = bytearray(min(size, 32))
    read_into(fd, head, 0)
    raw = bytearray(_json_length(bytes(head), size, path))
    read_into(fd, raw, 8)
    content = parse_json(bytes(raw), f"{path}: its header")
    metadata = _metadata(content.pop(METADATA, {}), path)
    entries = [_entry(name, value, f"{path}: tensor {shown(name)}") for name, value in content.items()]
    tensors = _in_data_order(entries, size - 8 - len(raw), path)
    return Header(tensors, metadata, 8 + len(raw), sha256(head[:8] + raw).hexdigest())


def encode_header(specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> bytes:
    """The first bytes of a safetensors file: its data follows in the order of `specs`, without gaps.

    Returns:
        Length (8 bytes), JSON and spaces; a multiple of 64 bytes.

    Raises:
        ValueError: two tensors of one name, or one named `__metadata__`.
    """
    content: dict[str, Any] = {METADATA: dict(metadata)}
    end = 0
    for spec in specs:
        if spec.name in content:
            raise ValueError(f"the tensor name {shown(spec.name)} is taken, expected every name once")
        begin, end = end, end + spec.nbytes
        content[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [begin, end]}
    if not metadata:
        del content[METADATA]
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Turn what the OS says into a SourceError that names the place."""
    try:
        yield
    except MergeError:
        raise
    except ShortRead as short:
        found = f"truncated: {short.got} of {short.wanted} bytes are there"
        raise SourceError(f"{place}: {found}. {AGAIN}") from short
    except FileNotFoundError as problem:
        raise SourceNotFoundError(f"{place}: no such file. Download or save it again.") from problem
    except OSError as problem:
        raise SourceError(f"{place}: can't be read: {problem.strerror}.") from problem


def parse_json(raw: bytes, place: str) -> dict[str, Any]:
    """An object from strict JSON: UTF-8, every name once, no NaN or infinity.

    Raises:
        SourceError: names the place and what was found.
    """
    if raw.startswith(LFS):
        raise SourceError(f"{place}: {FOREIGN[LFS]}")
    try:
        content = json.loads(raw.decode(), object_pairs_hook=_distinct, parse_constant=_no_constant)
    except (ValueError, RecursionError) as problem:
        raise SourceError(f"{place} is not JSON as expected: {str(problem)[:200]}. {AGAIN}") from problem
    if not isinstance(content, dict):
        raise SourceError(f"{place} is {shown(content)}, expected a JSON object. {AGAIN}")
    return content


def shown(value: object) -> str:
    """Any JSON value for a message: at most a line or so."""
    return _REPR.repr(value)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ValueError(f"the name {shown(name)} appears twice")
        for text in (name, value):
            if isinstance(text, str):
                text.encode()  # half a surrogate pair is a str that nothing can print or write
        content[name] = value
    return content


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def _json_length(head: bytes, size: int, path: Path) -> int:
    if size < 8:
        found = f"{size} bytes" if size else "an empty file"
        raise SourceError(f"{path}: {found}, expected at least the 8 bytes of a safetensors length. {AGAIN}")
    length = int.from_bytes(head[:8], "little")
    if length <= min(size - 8, LIMIT):
        return length
    for magic, found in FOREIGN.items():  # only now: a header of 640 bytes starts like a pickle
        if head.startswith(magic):
            raise SourceError(f"{path}: {found}")
    if length > LIMIT:
        raise SourceError(f"{path}: a header of {length} bytes, expected at most {LIMIT}. {AGAIN}")
    found = f"{length + 8 - size} bytes of its header are missing, expected {length}"
    raise SourceError(f"{path}: truncated: {found}. {AGAIN}")


def _metadata(found: object, path: Path) -> dict[str, str]:
    if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
        return found
    raise SourceError(f"{path}: {METADATA} is {shown(found)}, expected names with texts. {AGAIN}")


def _entry(name: str, value: object, place: str) -> TensorEntry:
    if not isinstance(value, dict) or value.keys() != set(FIELDS):
        raise SourceError(f"{place} is {shown(value)}, expected exactly {', '.join(FIELDS)}. {AGAIN}")
    spec = TensorSpec(name, _dtype(value["dtype"], place), _shape(value["shape"], place))
    offsets = value["data_offsets"]
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise SourceError(f"{place} has data_offsets {shown(offsets)}, expected [begin, end]. {AGAIN}")
    begin, end = offsets
    if end - begin != spec.nbytes:
        expected = f"{spec.dtype} {shown(list(spec.shape))} takes {spec.nbytes}"
        raise SourceError(f"{place} has {end - begin} bytes (data_offsets), but {expected}. {AGAIN}")
    return TensorEntry(spec, begin, end)


def _dtype(found: object, place: str) -> str:
    if isinstance(found, str) and found in DTYPES:
        return found
    if isinstance(found, str) and found in UNSUPPORTED:
        todo = "Use a checkpoint in a supported dtype, for example BF16."
        raise SourceError(f"{place} has dtype {found}, which is not supported. {todo}")
    hint = did_you_mean(str(found)[:32].upper() if isinstance(found, str) else "", DTYPES)
    raise SourceError(f"{place} has dtype {shown(found)}, expected a safetensors dtype.{hint}")


def _shape(found: Any, place: str) -> tuple[int, ...]:
    if not _naturals(found):
        raise SourceError(f"{place} has shape {shown(found)}, expected integers from 0 on. {AGAIN}")
    elements = 1
    for length in found:
        elements *= length
        if max(elements, length) >= TOO_MANY:  # stops early: the product of a long list would take minutes
            raise SourceError(f"{place} has shape {shown(found)}, expected under 2^63 elements. {AGAIN}")
    return tuple(found)


def _naturals(found: object) -> bool:
    return isinstance(found, list) and all(type(number) is int and number >= 0 for number in found)


def _in_data_order(entries: Iterable[TensorEntry], available: int, path: Path) -> dict[str, TensorEntry]:
    tensors: dict[str, TensorEntry] = {}
    cursor = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != cursor:
            found = "overlaps the one before it" if entry.begin < cursor else "leaves a gap before it"
            offsets = f"it begins at byte {entry.begin} of the data, expected {cursor}"
            raise SourceError(f"{path}: tensor {shown(entry.spec.name)} {found}: {offsets}. {AGAIN}")
        cursor = entry.end
        tensors[entry.spec.name] = entry
    if cursor > available:
        first = next(shown(name) for name, entry in tensors.items() if entry.end > available)
        raise SourceError(
            f"{path}: truncated: {cursor - available} bytes are missing, from tensor {first} on: "
            f"the header describes {cursor} bytes of data, found {available}. {AGAIN}"
        )
    if cursor < available:
        raise SourceError(f"{path}: {available - cursor} bytes more than the header describes. {AGAIN}")
    return tensors
