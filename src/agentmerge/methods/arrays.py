"""Where matrices are computed: numpy on processors, or torch on a device (methods/torch_arrays.py).

Both do the same float operations in the same order where no product is summed, so task vectors are the same bits.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from threadpoolctl import ThreadpoolController

from agentmerge.machine import available_cpus, memory_bytes
from agentmerge.methods import sparse
from agentmerge.methods.base import added
from agentmerge.tensors import as_float32

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agentmerge.methods.base import Precision
    from agentmerge.methods.torch_arrays import TorchArrays
    from agentmerge.tensors import Array

BLOCK = 256
"""Columns that are solved for at a time."""
SECOND = 1.0
"""How long speeds are measured."""
ROOM = 0.25
"""Share of the machine's memory that the matrices in work may take together."""


class WhileInside:
    """A context of the whole process: the first thread in enters it, the last one out leaves it."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._make, self._lock, self._inside = make, threading.Lock(), 0
        self._entered: AbstractContextManager[Any]

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._entered = self._make()
                self._entered.__enter__()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._entered.__exit__(None, None, None)


_blas = cache(ThreadpoolController)
ONE_THREAD = WhileInside(lambda: _blas().limit(limits=1, user_api="blas"))
"""Products are computed by the thread that asks for them."""


class Arrays:
    """numpy arrays, the library `xp` of what is computed with them; torch's differ in where they lie.

    A matrix takes one processor, and others are computed beside it: a BLAS that takes all of them for each product
    waits for threads that read and write meanwhile, and leaves them idle in all that is no product. It also keeps the
    bytes the same for any number of workers.
    """

    xp: Any = np
    device = "cpu"
    batches: ClassVar[bool] = False
    """Whether several small matrices are quicker together."""
    panel: ClassVar[int] = 1 << 22
    """Elements of a part of a matrix that are held at a time in float64."""

    def share(self, nbytes: int) -> float:
        """What a matrix that takes so many bytes takes of all there is."""
        return min(max(1 / available_cpus(), nbytes / (ROOM * memory_bytes())), 1.0)

    def panels(self, length: int, width: int) -> list[slice]:
        """How rows or columns are divided, `length` of them with `width` elements each."""
        step = max(self.panel // width, min(BLOCK, length))
        return [slice(low, min(low + step, length)) for low in range(0, length, step)]

    def empty(self, shape: tuple[int, ...], precision: Precision = "float64") -> Any:
        """An array of this library that holds nothing yet."""
        return np.empty(shape, precision)

    def put(self, values: Any, precision: Precision) -> Any:
        """An array of this library with these numbers; it may share their memory."""
        return np.asarray(values, precision)

    def get(self, values: Any) -> Array:
        """Back to numpy, float32."""
        return np.asarray(values, np.float32)

    def sent(self, stored: Array) -> Any:
        """Stored numbers where they are computed with, in their own dtype."""
        return stored

    def wide(self, stored: Any) -> Any:
        """What was sent, or a part of it, as float32."""
        return as_float32(stored)

    def added(self, base: Any, update: Any) -> Array:
        """methods.base.added, back in numpy."""
        return added(base, update)

    def gram(self, matrix: Any) -> Any:
        """matrix^T matrix; half of it is computed."""
        return sparse.gram(matrix) if sparse.is_sparse(matrix) else matrix.T @ matrix

    def outer(self, matrix: Any) -> Any:
        """Matrix matrix^T; half of it is computed."""
        return matrix @ matrix.T

    def times(self, matrix: Any, right: Any) -> Any:
        """Matrix right, for a matrix of which most may be zero."""
        return sparse.times(matrix, right) if sparse.is_sparse(matrix) else matrix @ right

    def solved(self, system: Any, pull: float, right: Any) -> Any:
        """X [..., rows, n] with X (system + pull I) = right, for a positive definite system [..., n, n].

        Both are changed.
        """
        system.reshape(-1)[:: len(system) + 1] += pull
        try:
            return _by_substitution(np.linalg.cholesky(system), right)
        except np.linalg.LinAlgError:  # rounding left it not quite definite
            return np.linalg.solve(system, right.T).T

    @contextmanager
    def computing(self) -> Iterator[None]:
        """While products are computed: by the thread that asks for them, in the precision of their numbers."""
        with ONE_THREAD:
            yield


@cache
def cuda() -> TorchArrays | None:
    """Arrays on the CUDA devices, where torch is installed and finds one."""
    from agentmerge.methods.torch_arrays import on_cuda

    return on_cuda()


@cache
def speed(device: str, precision: Precision) -> float:
    """FLOP per second of products of matrices, by all processors or one GPU, measured for a second the first time."""
    arrays = cuda() if device == "cuda" else Arrays()
    assert arrays is not None
    side, threads = (4096, 1) if device == "cuda" else (1024, available_cpus())
    done = [0] * threads

    def multiply(which: int) -> None:
        with arrays.computing():
            matrix = arrays.put(np.full((side, side), 1 / side, np.float32), precision)
            float((matrix @ matrix)[0, 0])  # the first one starts libraries
            ready.wait()
            started = time.perf_counter()
            while time.perf_counter() - started < SECOND:
                float((matrix @ matrix)[0, 0])
                done[which] += 1

    ready = threading.Barrier(threads)
    workers = [threading.Thread(target=multiply, args=(which,)) for which in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done) * 2.0 * side**3 / SECOND


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
