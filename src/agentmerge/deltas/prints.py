"""Fingerprints of tensors, block by block from any thread."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from agentmerge import kernels
from agentmerge.survey.integrity import fingerprint, fingerprint_key
from agentmerge.tensors import Stack

if TYPE_CHECKING:
    from agentmerge.tensors import Array, Block


class Prints:
    """The sums of some tensors."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], int] = {}
        self._lock = Lock()

    def add(self, who: str, block: Block, array: Array) -> None:
        """Add one block of a tensor.

        Args:
            who: "base" or "agent".
            block: of the tensor of the name that the key is that of; its start times the item size is a multiple of 4.
            array: its numbers, [block.elements].
        """
        found, key = _print(block, array), (who, block.tensor.name)
        with self._lock:
            self._sums[key] = (self._sums.get(key, 0) + found) % 2**64

    def of(self, who: str, tensor: str) -> str:
        """In 16 hexadecimal digits; of a tensor without elements 0."""
        return f"{self._sums.get((who, tensor), 0):016x}"


def _print(block: Block, array: Array) -> int:
    key, stack = fingerprint_key(block.tensor.name), Stack(block, array, (array,), ())
    if (backend := kernels.choose(stack)) is not None:
        return int(backend.integrity(Stack(block, array, (), ()), key)[2][0])
    return fingerprint(array, key, block.start)
