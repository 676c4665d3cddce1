"""Matrices on GPUs: torch tensors, moved through pinned memory. The only file of all methods that knows torch."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from agentmerge.methods.arrays import Arrays, WhileInside
from agentmerge.tensors import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.methods.base import Precision
    from agentmerge.tensors import Array

AT_ONCE = 16
"""Matrices in work on one GPU at most: most are read or written by processors while one or two are computed."""
LARGE, BLOCKS = 1024, 4
"""Side from which a symmetric product is computed in so many blocks of rows, to save nearly half of it."""
ROOM = 0.8
"""Share of a GPU's memory that they may take together."""


class TorchArrays(Arrays):
    """torch tensors, on one device or, matrix by matrix, on several."""

    batches: ClassVar[bool] = True
    panel: ClassVar[int] = 1 << 25

    def __init__(self, device: str, count: int = 1) -> None:
        """See the class.

        Args:
            device: torch's name for the kind.
            count: how many there are.
        """
        import torch

        self.xp = torch
        self.device = device
        self._names = [f"cuda:{i}" for i in range(count)] if device == "cuda" else [device]
        self._taken = 0
        for name in self._names:  # torch loads its solvers once, and not from several threads
            torch.linalg.cholesky_ex(torch.eye(2, dtype=torch.float64, device=name))
        self._lock = threading.Lock()
        self._precisely = WhileInside(self._highest)
        self._thread = threading.local()

    def share(self, nbytes: int) -> float:
        """See Arrays.share; the devices' memory together."""
        if self.device != "cuda":
            return 1.0
        room = min(int(self.xp.cuda.get_device_properties(name).total_memory) for name in self._names)
        return min(max(1 / AT_ONCE, nbytes / (ROOM * room)), 1.0) / len(self._names)

    def empty(self, shape: tuple[int, ...], precision: Precision = "float64") -> Any:
        """See Arrays.empty."""
        return self.xp.empty(shape, dtype=getattr(self.xp, precision), device=self._here)

    @property
    def _here(self) -> str:
        """The device of this thread's matrix."""
        name: str = getattr(self._thread, "name", self._names[0])
        return name

    def put(self, values: Any, precision: Precision) -> Any:
        """On the device."""
        values = self.xp.as_tensor(values).to(device=self._here, non_blocking=True)
        return values.to(getattr(self.xp, precision))

    def get(self, values: Any) -> Array:
        """Back to numpy, float32; valid until the same thread gets something else."""
        if self.device == "cuda":
            return self._fetched(values)
        found: Array = values.to(self.xp.float32).numpy()
        return found

    def _fetched(self, values: Any) -> Array:
        """From the device into pinned memory of this thread."""
        values = values.to(self.xp.float32)
        held = self._room("inward", 4 * values.numel()).view(self.xp.float32).view(values.shape)
        held.copy_(values, non_blocking=True)
        self._thread.stream.synchronize()
        found: Array = held.numpy()
        return found

    def sent(self, stored: Array) -> Any:
        """See Arrays.sent; by way of pinned memory of this thread, which copies at full speed and waits for nobody."""
        half = stored.dtype == DTYPES["BF16"]
        array = self.xp.from_numpy(np.ascontiguousarray(stored.view(np.int16) if half else stored))
        if self.device == "cuda":
            self._thread.stream.synchronize()  # what was sent from there before
            place = self._room("outward", array.numel() * array.element_size()).view(array.dtype)
            place.copy_(array)
            array = place.to(self._here, non_blocking=True)
        return array.view(self.xp.bfloat16) if half else array

    def wide(self, stored: Any) -> Any:
        """See Arrays.wide."""
        return stored.to(self.xp.float32)

    def _room(self, name: str, nbytes: int) -> Any:
        """Pinned memory of this thread, uint8 [nbytes]."""
        held = getattr(self._thread, name, None)
        if held is None or held.numel() < nbytes:
            held = self.xp.empty(nbytes, dtype=self.xp.uint8, pin_memory=True)
            setattr(self._thread, name, held)
        return held[:nbytes]

    def added(self, base: Any, update: Any) -> Array:
        """See Arrays.added."""
        return self.get(self.xp.where(update == 0, base, base + update))

    def gram(self, matrix: Any) -> Any:
        """See Arrays.gram."""
        return self.outer(matrix.mT)

    def outer(self, matrix: Any) -> Any:
        """See Arrays.outer; row by row of large blocks, none of them right of the diagonal's."""
        side = matrix.shape[-2]
        found = self.xp.empty((*matrix.shape[:-1], side), dtype=matrix.dtype, device=matrix.device)
        edges = [side * i // BLOCKS for i in range(BLOCKS + 1)] if side >= LARGE else [0, side]
        for low, high in pairwise(edges):
            self.xp.matmul(matrix[..., low:high, :], matrix[..., :high, :].mT, out=found[..., low:high, :high])
            found[..., :low, low:high] = found[..., low:high, :low].mT
        return found

    def times(self, matrix: Any, right: Any) -> Any:
        """See Arrays.times."""
        return matrix @ right

    def solved(self, system: Any, pull: float, right: Any) -> Any:
        """See Arrays.solved."""
        system.diagonal(0, -2, -1).add_(pull)
        lower, failed = self.xp.linalg.cholesky_ex(system)
        if bool(failed.any()):
            return self.xp.linalg.solve(system, right.mT).mT
        return self.xp.cholesky_solve(right.mT, lower).mT

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Float32 products in float32, whatever the environment says of TF32; on a device and stream of this thread."""
        with self._precisely:
            if self.device != "cuda":
                yield
                return
            if not hasattr(self._thread, "stream"):
                self._thread.name = self._next_name()
                self._thread.stream = self.xp.cuda.Stream(self._here)
            with self.xp.cuda.device(self._here), self.xp.cuda.stream(self._thread.stream):
                yield
                self._thread.stream.synchronize()

    @contextmanager
    def _highest(self) -> Iterator[None]:
        before = self.xp.get_float32_matmul_precision()
        self.xp.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            self.xp.set_float32_matmul_precision(before)

    def _next_name(self) -> str:
        with self._lock:
            self._taken += 1
            return self._names[(self._taken - 1) % len(self._names)]


def on_cuda() -> TorchArrays | None:
    """On the CUDA devices, where torch is installed and finds one."""
    try:
        import torch
    except (ImportError, OSError):
        return None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return TorchArrays("cuda", count) if count else None
