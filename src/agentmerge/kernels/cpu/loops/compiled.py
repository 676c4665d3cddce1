"""How a function becomes compiled code: when, with which options, and what makes numba's cache stale."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from numba import njit

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


_OPTIONS: Any = {"error_model": "numpy", "_nrt": False}
"""Without numba's reference counts: every array outlives the call, and counting them once per vector, which numba does
wherever it can't prove that it need not, made some formulas three times as slow. So a loop may not make an array."""


def inlined(function: F) -> F:
    """A jitted helper that becomes part of its caller."""
    return cast("F", njit(forceinline=True, **_OPTIONS)(function))


def compiled(signature: Any) -> Callable[[Callable[..., Any]], Loop]:
    """A loop with this signature."""
    return lambda function: Loop(function, signature)


class Loop:
    """A function that numba compiles, or loads from its cache, when it is first called; `load` does so before."""

    def __init__(self, function: Callable[..., Any], signature: Any) -> None:
        self._function, self._signature = function, signature
        self._compiled: Any = None
        self._lock = Lock()

    def __call__(self, *arguments: Any) -> Any:
        """Run it; the interpreter's lock is not held meanwhile."""
        return (self.load() if self._compiled is None else self._compiled)(*arguments)

    def load(self) -> Any:
        """The compiled function; without a cache where no folder can be written.

        numba's cache knows a function by its file and name and looks at no other file, so the name carries a digest.
        """
        with self._lock:
            if self._compiled is None:
                function, options = self._function, {**_OPTIONS, "nogil": True}
                function.__qualname__ = f"{function.__name__}_{_digest(Path(function.__code__.co_filename))}"
                try:
                    self._compiled = njit([self._signature], cache=True, **options)(function)
                except (RuntimeError, OSError):
                    self._compiled = njit([self._signature], **options)(function)
        return self._compiled


def _digest(own: Path) -> str:
    """Of everything that a loop is made of, its own file included."""
    return sha256(_shared() + own.read_bytes()).hexdigest()[:12]


@cache
def _shared() -> bytes:
    """Of the files of kernels/, and of the two others that their constants come from."""
    package = Path(__file__).parents[3]
    files = (*sorted((package / "kernels").rglob("*.py")), package / "tensors.py", package / "randomness.py")
    return sha256(b"".join(file.read_bytes() for file in files)).digest()
