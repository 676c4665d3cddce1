"""What a file of torch.save holds and where, read without torch and without running anything of it.

    ARCHIVE/data.pkl       the state dict: a pickle of which only the records of tensors are known
    ARCHIVE/data/KEY       the numbers of storage KEY, stored as they are
    ARCHIVE/byteorder      little

A tensor is a range of a storage, laid out by strides; several may share one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

from agentmerge.errors import SourceError, Where
from agentmerge.files.documents import LFS, LFS_TODO, abbreviated
from agentmerge.files.header import CONVERT, LIMIT, METADATA, TOO_MANY, Header, Strided, TensorEntry
from agentmerge.files.os_errors import AGAIN
from agentmerge.files.pickles import Call, Name, Persistent, PickleRefused, described
from agentmerge.files.positional import read_into
from agentmerge.files.zips import MAGIC, Member, ZipRefused, members
from agentmerge.tensors import DTYPES, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}  # fmt: skip
TORCH_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64",
    "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
UNTYPED = "UntypedStorage"
TENSOR, TENSOR_3 = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"
PARAMETERS = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
CALLS = frozenset({TENSOR, TENSOR_3, *PARAMETERS})
"""All that a pickle may ask to be called; nothing is."""
MOST_STRIDED = 64_000_000
"""Bytes that a tensor which is not contiguous may lie over: every block of it reads them all."""
CONTIGUOUS = "So large a tensor is read only where it is contiguous: call .contiguous() on it and save again."
MOST_DIMENSIONS = 32
LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""How torch.save began before 1.6."""
RESAVE = (
    "Save it again with torch 1.6 or newer: `torch.save(torch.load(FILE, weights_only=True), NEW)`, or as safetensors."
)
UNTRUSTED = (
    "Nothing of it was run. A state dict of tensors needs no such call: do not load this file with pickle or "
    "weights_only=False unless you trust whoever made it; ask for safetensors."
)
ALONE = "Save the model's state dict alone (its names with tensors), or call save_pretrained."


@dataclass(frozen=True)
class _Storage:
    dtype: str
    """"" where the tensor says it."""
    begin: int
    nbytes: int


def torch_header(fd: int, path: Path) -> Header:
    """The tensors of an open file of torch.save; `strided` tells which do not lie in one piece.

    Args:
        fd: opened for reading.
        path: for messages.

    Raises:
        SourceError: whatever is wrong with it.
        OSError: it can't be read.
    """
    _check_kind(fd, path)
    try:
        parts = members(fd)
        root = next(name for name in parts if name == "data.pkl" or name.endswith("/data.pkl"))[: -len("data.pkl")]
        raw = _content(fd, parts[f"{root}data.pkl"])
        order = _content(fd, parts[f"{root}byteorder"]) if f"{root}byteorder" in parts else b"little"
    except ZipRefused as error:
        _refuse(path, str(error), todo=AGAIN)
    except StopIteration:
        _refuse(path, "a zip archive without data.pkl", "a file of torch.save", CONVERT)
    if order != b"little":
        _refuse(path, f"numbers of byte order {abbreviated(order)}", "little", CONVERT)
    try:
        found = described(raw, CALLS)
    except PickleRefused as error:
        text = f"its pickle is refused: {error}"
        _refuse(path, text, "tensors by name", AGAIN if "broken" in str(error) else UNTRUSTED)
    return _header(found, {key[len(root) + 5 :]: m for key, m in parts.items() if key.startswith(f"{root}data/")},
                   raw, path)  # fmt: skip


def _check_kind(fd: int, path: Path) -> None:
    head = bytearray(min(os.fstat(fd).st_size, 32))
    read_into(fd, head, 0)
    if head.startswith(MAGIC):
        return
    if head.startswith(LFS):
        _refuse(path, "a Git LFS pointer", "the file itself", LFS_TODO)
    if head.startswith(LEGACY[:6]):
        _refuse(path, "a file of torch.save from before torch 1.6, which is no zip archive", "a newer one", RESAVE)
    if head[:1] == b"\x80":
        _refuse(path, "a bare pickle, which is no file of torch.save", "a zip archive of tensors", CONVERT)
    _refuse(path, "an empty file" if not head else "no zip archive", "a file of torch.save", AGAIN)


def _content(fd: int, member: Member) -> bytes:
    if member.end - member.begin > LIMIT:
        raise ZipRefused(f"a pickle of {member.end - member.begin} bytes, expected at most {LIMIT}")
    raw = bytearray(member.end - member.begin)
    read_into(fd, raw, member.begin)
    return bytes(raw)


def _header(found: Any, parts: Mapping[str, Member], raw: bytes, path: Path) -> Header:
    if not isinstance(found, dict):
        _refuse(path, f"a pickle of {_kind(found)}", "tensors by name", ALONE)
    entries: dict[str, TensorEntry] = {}
    strided: dict[str, Strided] = {}
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Call):
            _refuse(path, f"its entry {abbreviated(name)} is {_kind(value)}", "tensors by name", ALONE)
        if name == METADATA:
            _refuse(path, f"a tensor of the name {abbreviated(name)}", "another name", AGAIN)
        where = Where(tensor=name, path=str(path))
        for entry, layout in _tensors(value, parts, where):
            entries[name] = entry
            if layout is not None:
                strided[name] = layout
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    places = "".join(f"{key}\t{part.begin}\t{part.end}\n" for key, part in sorted(parts.items()))
    return Header(ordered, {}, 0, sha256(raw + places.encode("utf-8", "surrogatepass")).hexdigest(), strided)


def _kind(value: Any) -> str:
    known = {dict: "a mapping", list: "a list", tuple: "a tuple", Call: "a tensor", Persistent: "a bare storage"}
    return known.get(type(value), f"{abbreviated(value)}")


def _tensors(call: Call, parts: Mapping[str, Member], where: Where) -> Iterator[tuple[TensorEntry, Strided | None]]:
    """The entry of a tensor's record, and its layout where it is not contiguous."""
    while call.name in PARAMETERS:
        if not call.arguments or not isinstance(call.arguments[0], Call):
            _wrong(where, "is a Parameter of something else than a tensor", "a tensor")
        call = call.arguments[0]
    count = 7 if call.name == TENSOR_3 else 4
    if len(call.arguments) < count:
        _wrong(where, f"has a record of {len(call.arguments)} parts", f"at least {count}")
    storage, offset, shape, strides = call.arguments[:4]
    if (
        not _naturals((offset,))
        or not _naturals(shape)
        or not _naturals(strides)
        or not len(shape) == len(strides) <= MOST_DIMENSIONS
    ):
        text = f"has offset {abbreviated(offset)}, shape {abbreviated(shape)}, strides {abbreviated(strides)}"
        _wrong(where, text, "whole numbers from 0 on")
    held = _storage(storage, parts, where)
    dtype = held.dtype or _dtype(call.arguments[6] if count == 7 else None, where)
    yield _laid(TensorSpec(where.tensor, dtype, shape), strides, offset, held, where)


def _laid(
    spec: TensorSpec, strides: tuple[int, ...], offset: int, held: _Storage, where: Where
) -> tuple[TensorEntry, Strided | None]:
    itemsize = DTYPES[spec.dtype].itemsize
    if any(n >= TOO_MANY for n in (*spec.shape, *strides, offset)) or spec.elements >= TOO_MANY:
        _wrong(where, f"has shape {abbreviated(list(spec.shape))}", "under 2^63 elements")
    steps = [(n - 1) * stride for n, stride in zip(spec.shape, strides, strict=True)]
    span = sum(steps) + 1 if spec.elements else 0
    if (offset + span) * itemsize > held.nbytes:
        _wrong(where, f"takes elements up to {offset + span} of a storage of {held.nbytes // itemsize}", "fewer")
    begin = held.begin + offset * itemsize
    if _contiguous(spec.shape, strides) or not spec.elements:
        return TensorEntry(spec, begin, begin + spec.nbytes), None
    if max(span * itemsize, spec.nbytes) > MOST_STRIDED:
        _wrong(where, f"of {spec.nbytes:,} bytes has strides {abbreviated(list(strides))}", "row by row", CONTIGUOUS)
    raw = TensorSpec(spec.name, spec.dtype, (span,))
    return TensorEntry(raw, begin, begin + span * itemsize), Strided(spec.shape, strides)


def _contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements follow each other row by row; the stride of a dimension of one counts for nothing."""
    return all(
        n == 1 or stride == prod(shape[i + 1 :]) for i, (n, stride) in enumerate(zip(shape, strides, strict=True))
    )


def _storage(found: Any, parts: Mapping[str, Member], where: Where) -> _Storage:
    key = found.key if isinstance(found, Persistent) else None
    if not isinstance(key, tuple) or len(key) != 5 or key[0] != "storage" or not isinstance(key[1], Name):
        _wrong(where, "has no storage", "one that lies in the file")
    kind, name, elements = key[1].text.rpartition(".")[2], key[2], key[4]
    if kind not in STORAGES and kind != UNTYPED:
        _wrong(where, f"lies in a {abbreviated(kind)}", "a storage of numbers", CONVERT)
    if not isinstance(name, str) or name not in parts or not _naturals((elements,)):
        _wrong(where, f"lies in storage {abbreviated(name)}, which the file does not hold", "one of its members")
    dtype, part = STORAGES.get(kind, ""), parts[name]
    nbytes = elements * (DTYPES[dtype].itemsize if dtype else 1)
    if nbytes != part.end - part.begin:
        _wrong(where, f"lies in storage {abbreviated(name)} of {part.end - part.begin} bytes", f"{nbytes}")
    return _Storage(dtype, part.begin, nbytes)


def _dtype(found: Any, where: Where) -> str:
    name = found.text.rpartition(".")[2] if isinstance(found, Name) else ""
    if name not in TORCH_DTYPES:
        _wrong(where, f"has dtype {abbreviated(name)}", "one of safetensors", CONVERT)
    return TORCH_DTYPES[name]


def _naturals(found: Any) -> bool:
    return isinstance(found, tuple) and all(type(number) is int and number >= 0 for number in found)


def _wrong(where: Where, found: str, expected: str, todo: str = AGAIN) -> NoReturn:
    text = f"{where.path}: tensor {abbreviated(where.tensor)} {found}"
    raise SourceError(text, expected=expected, todo=todo, where=where)


def _refuse(path: Path, found: str, expected: str = "", todo: str = "") -> NoReturn:
    raise SourceError(f"{path}: {found}", expected=expected, todo=todo, where=Where(path=str(path)))
