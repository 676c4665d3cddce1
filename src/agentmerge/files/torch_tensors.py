"""What the record of one tensor says in a pickle of torch.save: its dtype, shape, and where its numbers lie.

A tensor is a range of a storage, laid out by strides; several may share one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

from agentmerge.errors import SourceError, Where
from agentmerge.files.documents import abbreviated
from agentmerge.files.header import CONVERT, TOO_MANY, Strided, TensorEntry
from agentmerge.files.os_errors import AGAIN
from agentmerge.files.pickles import Call, Name, Persistent
from agentmerge.tensors import DTYPES, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.files.zips import Member

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
SUBCLASS = "torch._tensor._rebuild_from_type_v2"
"""A tensor with attributes, of its own class or of another: how it is made, its class, of what, and its state."""
PLAIN = ("torch.Tensor", "torch.nn.parameter.Parameter")
"""Classes that are no more than a tensor, whatever attributes somebody gave it."""
CALLS = frozenset({TENSOR, TENSOR_3, *PARAMETERS, SUBCLASS})
"""All that a pickle may ask to be called; nothing is."""
MOST_STRIDED = 64_000_000
"""Bytes that a tensor which is not contiguous may lie over: every block of it reads them all."""
CONTIGUOUS = "So large a tensor is read only where it is contiguous: call .contiguous() on it and save again."
MOST_DIMENSIONS = 32


@dataclass(frozen=True)
class _Storage:
    dtype: str
    """"" where the tensor says it."""
    begin: int
    nbytes: int


def tensor_of(call: Call, parts: Mapping[str, Member], where: Where) -> tuple[TensorEntry, Strided | None]:
    """The entry of a tensor's record, and its layout where it is not contiguous.

    Args:
        call: the record.
        parts: the storages of its archive.
        where: the tensor's name, and the file.

    Raises:
        SourceError: it is none, or none that can be read.
    """
    call = unwrapped(call, where)
    if call.name not in (TENSOR, TENSOR_3):
        _wrong(where, f"is what {abbreviated(call.name)} makes", "a tensor")
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
    dtype = held.dtype or dtype_of(call.arguments[6] if count == 7 else None, where)
    return _laid(TensorSpec(where.tensor, dtype, shape), strides, offset, held, where)


def unwrapped(call: Call, where: Where) -> Call:
    """The record of the tensor that a Parameter is, or that has attributes; other classes as they are."""
    while True:
        arguments = call.arguments
        if call.name in PARAMETERS:
            if not arguments or not isinstance(arguments[0], Call):
                _wrong(where, "is a Parameter of something else than a tensor", "a tensor")
            call = arguments[0]
        elif call.name == SUBCLASS and len(arguments) == 4 and getattr(arguments[1], "text", "") in PLAIN:
            if not isinstance(arguments[0], Name) or not isinstance(arguments[2], tuple):
                _wrong(where, "is made by something that has no name", "a tensor")
            call = Call(arguments[0].text, arguments[2])
        else:
            return call


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


def dtype_of(found: Any, where: Where) -> str:
    """How safetensors spells the dtype that a pickle names."""
    name = found.text.rpartition(".")[2] if isinstance(found, Name) else ""
    if name not in TORCH_DTYPES:
        _wrong(where, f"has dtype {abbreviated(name)}", "one of safetensors", CONVERT)
    return TORCH_DTYPES[name]


def _naturals(found: Any) -> bool:
    return isinstance(found, tuple) and all(type(number) is int and number >= 0 for number in found)


def _wrong(where: Where, found: str, expected: str, todo: str = AGAIN) -> NoReturn:
    text = f"{where.path}: tensor {abbreviated(where.tensor)} {found}"
    raise SourceError(text, expected=expected, todo=todo, where=where)
