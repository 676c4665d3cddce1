"""Where matrices are computed: numpy on processors, or torch on a device. The only file of all methods with torch.

Both do the same float operations in the same order where no product is summed, so task vectors are the same bits.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.methods import sparse
from agentmerge.methods.base import added
from agentmerge.tensors import DTYPES, as_float32

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.methods.base import Precision
    from agentmerge.tensors import Array, Stack

BLOCK = 256
"""Columns that are solved for at a time."""
AT_ONCE = 8
"""Matrices in work on one GPU at most: most are read or written by processors while one or two are computed."""
ROOM = 0.8
"""Share of a GPU's memory that they may take together."""


class Arrays:
    """numpy arrays, the library `xp` of what is computed with them; torch's differ in where they lie."""

    xp: Any = np
    device = "cpu"

    def share(self, nbytes: int) -> float:
        """What a matrix that takes so many bytes takes of all there is."""
        return 1.0

    def put(self, values: Any, precision: Precision) -> Any:
        """An array of this library with these numbers; it may share their memory."""
        return np.asarray(values, precision)

    def get(self, values: Any) -> Array:
        """Back to numpy, float32."""
        return np.asarray(values, np.float32)

    def numbers(self, stored: Array) -> Any:
        """Stored numbers as float32."""
        return as_float32(stored)

    def base(self, stack: Stack) -> Any:
        """The base's numbers, float32 [n]."""
        return self.numbers(stack.base)

    def task_vector(self, stack: Stack, base: Any, t: int) -> Any:
        """tau[t] times the agent's weight, float32 [n]; formed where it is computed with."""
        tau = self.numbers(stack.agents[t]) - base if stack.tau is None else self.put(stack.tau[t], "float32")
        weight = float(stack.weight()[t])
        return tau if weight == 1 else tau * weight

    def added(self, base: Any, update: Any) -> Array:
        """methods.base.added, back in numpy."""
        return added(base, update)

    def gram(self, matrix: Any) -> Any:
        """matrix^T matrix; half of it is computed."""
        return sparse.gram(matrix) if sparse.is_sparse(matrix) else matrix.T @ matrix

    def times(self, matrix: Any, right: Any) -> Any:
        """Matrix right, for a matrix of which most may be zero."""
        return sparse.times(matrix, right) if sparse.is_sparse(matrix) else matrix @ right

    def solved(self, system: Any, pull: float, right: Any) -> Any:
        """X [rows, n] with X (system + pull I) = right, for a positive definite system [n, n]; both are changed."""
        _shift(system, pull)
        try:
            return _by_substitution(np.linalg.cholesky(system), right)
        except np.linalg.LinAlgError:  # rounding left it not quite definite
            return np.linalg.solve(system, right.T).T

    @contextmanager
    def computing(self) -> Iterator[None]:
        """While products are computed: in the precision of their numbers."""
        yield


class TorchArrays(Arrays):
    """torch tensors, on one device or, matrix by matrix, on several."""

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
        self._taken = self._inside = 0
        self._before = "highest"
        for name in self._names:  # torch loads its solvers once, and not from several threads
            torch.linalg.cholesky_ex(torch.eye(2, dtype=torch.float64, device=name))
        self._lock = threading.Lock()
        self._thread = threading.local()

    def share(self, nbytes: int) -> float:
        """See Arrays.share; the devices' memory together."""
        if self.device != "cuda":
            return 1.0
        room = min(int(self.xp.cuda.get_device_properties(name).total_memory) for name in self._names)
        return min(max(1 / AT_ONCE, nbytes / (ROOM * room)), 1.0) / len(self._names)

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

    def numbers(self, stored: Array) -> Any:
        """As stored to the device, and float32 only there."""
        half = stored.dtype == DTYPES["BF16"]
        array = self.xp.from_numpy(np.ascontiguousarray(stored.view(np.int16) if half else stored))
        if self.device == "cuda":
            array = self._sent(array)
        return (array.view(self.xp.bfloat16) if half else array).to(device=self._here, dtype=self.xp.float32)

    def _sent(self, array: Any) -> Any:
        """On the device, by way of pinned memory of this thread, which copies at full speed and waits for nobody."""
        self._thread.stream.synchronize()  # what was sent from there before
        place = self._room("outward", array.numel() * array.element_size()).view(array.dtype)
        place.copy_(array)
        return place.to(self._here, non_blocking=True)

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
        """See Arrays.gram; all of it is computed."""
        return matrix.T @ matrix

    def times(self, matrix: Any, right: Any) -> Any:
        """See Arrays.times."""
        return matrix @ right

    def solved(self, system: Any, pull: float, right: Any) -> Any:
        """See Arrays.solved."""
        _shift(system, pull)
        lower, failed = self.xp.linalg.cholesky_ex(system)
        if int(failed):
            return self.xp.linalg.solve(system, right.T).T
        return self.xp.cholesky_solve(right.T, lower).T

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Float32 products in float32, whatever the environment says of TF32; on a device and stream of this thread."""
        with self._precisely():
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
    def _precisely(self) -> Iterator[None]:
        """A setting of the whole process: the first thread in makes it, the last one out takes it back."""
        with self._lock:
            if not self._inside:
                self._before = self.xp.get_float32_matmul_precision()
                self.xp.set_float32_matmul_precision("highest")
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    self.xp.set_float32_matmul_precision(self._before)

    def _next_name(self) -> str:
        with self._lock:
            self._taken += 1
            return self._names[(self._taken - 1) % len(self._names)]


@cache
def cuda() -> TorchArrays | None:
    """Arrays on the CUDA devices, where torch is installed and finds one."""
    try:
        import torch
    except (ImportError, OSError):
        return None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return TorchArrays("cuda", count) if count else None


@cache
def speed(device: str, precision: Precision) -> float:
    """FLOP per second of products of matrices, measured for a second the first time."""
    arrays = cuda() if device == "cuda" else Arrays()
    assert arrays is not None
    with arrays.computing():
        side = 4096 if device == "cuda" else 1024
        matrix = arrays.put(np.full((side, side), 1 / side, np.float32), precision)
        float((matrix @ matrix)[0, 0])  # the first one starts libraries
        started, done = time.perf_counter(), 0
        while (seconds := time.perf_counter() - started) < 1:
            float((matrix @ matrix)[0, 0])
            done += 1
    return done * 2.0 * side**3 / seconds


def _shift(system: Any, pull: float) -> None:
    system.reshape(-1)[:: system.shape[0] + 1] += pull


def _by_substitution(lower: Array, right: Array) -> Array:
    """X with X L L^T = right, block of columns by block, as numpy has no triangular solver; `right` is changed."""
    edges = [(low, min(low + BLOCK, len(lower))) for low in range(0, len(lower), BLOCK)]
    inverses = [np.linalg.inv(lower[low:high, low:high]) for low, high in edges]
    for (low, high), inverse in zip(edges, inverses, strict=True):
        known = right[:, :low] @ lower[low:high, :low].T
        right[:, low:high] = (right[:, low:high] - known) @ inverse.T
    for (low, high), inverse in zip(edges[::-1], inverses[::-1], strict=True):
        known = right[:, high:] @ lower[high:, low:high]
        right[:, low:high] = (right[:, low:high] - known) @ inverse
    return right
