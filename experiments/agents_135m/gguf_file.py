"""A GGUF file: its metadata and its tensors as they lie in it, packed."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9
KINDS = {
    0: ("F32", 1, 4),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    14: ("Q6_K", 256, 210),
}
"""Kind, elements of a block, bytes of a block."""


class GgufFile:
    """What stands in the file; `tensors` holds kind and packed bytes, uint8 [rows, bytes of a row]."""

    def __init__(self, path: Path):
        self._bytes = np.memmap(path, np.uint8, "r")
        self._at = 0
        magic, version, tensors, fields = self._take("<4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise SystemExit(f"{path}: not a GGUF file of version 2 or 3 (found {magic!r}, {version})")
        self.fields: dict[str, Any] = {}
        for _ in range(fields):
            name = self._text()
            self.fields[name] = self._value(self._take("<I")[0])
        heads = [self._head() for _ in range(tensors)]
        width = self.fields.get("general.alignment", 32)
        start = -(-self._at // width) * width
        self.tensors = {name: (kind, self._rows(kind, shape, start + at)) for name, kind, shape, at in heads}

    def _take(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(form, self._bytes, self._at)
        self._at += struct.calcsize(form)
        return found

    def _text(self) -> str:
        (size,) = self._take("<Q")
        self._at += size
        return bytes(self._bytes[self._at - size : self._at]).decode()

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind == LIST:
            inner, count = self._take("<IQ")
            return [self._value(inner) for _ in range(count)]
        return self._take("<" + SCALARS[kind])[0]

    def _head(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._text()
        (dimensions,) = self._take("<I")
        shape = self._take(f"<{dimensions}Q")[::-1]
        kind, offset = self._take("<IQ")
        return name, kind, shape, offset

    def _rows(self, number: int, shape: tuple[int, ...], start: int) -> np.ndarray:
        if number not in KINDS:
            names = ", ".join(name for name, _, _ in KINDS.values())
            raise SystemExit(f"a tensor of kind {number} of GGUF; known are {names}: unpack.py needs one more")
        _, elements, size = KINDS[number]
        row = shape[-1] // elements * size
        count = int(np.prod(shape[:-1], dtype=np.int64))
        return np.asarray(self._bytes[start : start + count * row]).reshape(count, row)

    def kind(self, name: str) -> str:
        """As KINDS names it."""
        return KINDS[self.tensors[name][0]][0]
