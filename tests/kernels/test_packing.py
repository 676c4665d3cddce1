"""Marks, and values taken out and put back by compiled loops, equal the numpy definitions bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import kernels
from agentmerge.kernels.cpu.loops import packing
from agentmerge.sources import bits
from agentmerge.tensors import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (0, 1, 63, 64, 65, 127, 4097, 3 * 65536 + 5)


def by_definition(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *arguments: Any) -> Any:
    with monkeypatch.context() as off:
        off.setattr(kernels, "choose", lambda *_: None)
        off.setattr(kernels, "compiling", lambda: False)
        return function(*arguments)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("density", [0, 0.02, 0.2, 0.6, 1])
def test_compiled_and_defined_agree(monkeypatch: pytest.MonkeyPatch, dtype: str, density: float) -> None:
    rng, size = np.random.default_rng(0), DTYPES[dtype].itemsize
    for n in SIZES:
        base = rng.integers(0, 1 << (8 * size), n, f"u{size}")  # any bits: NaN, inf, subnormals, -0.0
        agent = np.where(rng.random(n) < density, base ^ (1 << rng.integers(0, 8 * size)), base).astype(base.dtype)
        left, right = base.view(DTYPES[dtype]), agent.view(DTYPES[dtype])
        marks = bits.mark(left, right)
        np.testing.assert_array_equal(marks, by_definition(monkeypatch, bits.mark, left, right))
        counts = bits.count(marks, 65536)
        np.testing.assert_array_equal(counts, by_definition(monkeypatch, bits.count, marks, 65536))
        k = int(counts.sum())
        assert k == (base != agent).sum()
        values, places = bits.take(right, marks, k), bits.places(marks, 1000, k)
        np.testing.assert_array_equal(values.view(base.dtype), agent[base != agent])
        np.testing.assert_array_equal(places - 1000, np.flatnonzero(base != agent))
        given = np.concatenate([values, np.zeros(1, values.dtype)])
        for in_place, defined in ((True, False), (False, False), (True, True), (False, True)):
            guarded = np.concatenate([base if in_place else np.zeros_like(base), np.full(64, 7, base.dtype)])
            out = guarded[:n].view(DTYPES[dtype])
            old = out if in_place else left
            if defined:
                by_definition(monkeypatch, bits.put, given, marks, old, out)
            else:
                bits.put(given, marks, old, out)
            np.testing.assert_array_equal(guarded[:n], agent)
            assert (guarded[n:] == 7).all()  # nothing behind the end is touched


@pytest.mark.parametrize("size", [2, 4])
def test_machines_without_the_instructions_do_the_same(size: int) -> None:
    take, put = packing.take_made(packing.take_walked, size), packing.put_made(packing.put_walked, size)
    rng = np.random.default_rng(2)
    for n in SIZES[1:]:
        for density in (0.02, 0.5, 1):
            flags = rng.random(n) < density
            values, marks = rng.integers(0, 1 << 16, n, f"u{size}"), bits.marked(np.flatnonzero(flags), n)
            taken = np.zeros(flags.sum() + 1, values.dtype)
            take(values, 0, marks, taken, 0)
            np.testing.assert_array_equal(taken[:-1], values[flags])
            out = np.zeros(n, values.dtype)
            put(taken, 0, marks, 0, out, 0)
            np.testing.assert_array_equal(out, np.where(flags, values, 0))


def test_marks_travel_as_bytes_and_parts_of_them_are_marks() -> None:
    rng = np.random.default_rng(1)
    for n in (1, 8, 9, 64, 1000, 4097):
        flags = rng.random(n) < 0.4
        marks = bits.marked(np.flatnonzero(flags), n)
        data = bits.as_bytes(marks, n)
        assert data.size == -(-n // 8)
        np.testing.assert_array_equal(np.unpackbits(data, bitorder="little", count=n), flags)
        np.testing.assert_array_equal(bits.as_words(data, n), marks)
        assert not bits.beyond(marks, n)
        low, high = sorted(rng.integers(0, n + 1, 2))
        before, part = bits.parted(marks, int(low), int(high - low))
        assert before == flags[:low].sum()
        found = np.unpackbits(bits.as_bytes(part, int(high - low)), bitorder="little")[: high - low]
        np.testing.assert_array_equal(found, flags[low:high])
    assert bits.beyond(np.array([1 << 5], np.uint64), 5)


def test_without_numba_all_is_the_same() -> None:
    script = (
        "import numpy as np\nfrom agentmerge.sources import bits\n"
        "a = np.zeros(1000, np.float32); b = a.copy(); b[::3] = 1\n"
        "m = bits.mark(a, b); v = bits.take(b, m, 334)\nbits.put(np.append(v, v[:1]), m, a, a)\n"
        "import sys; print((a == b).all(), bits.places(m, 0, 334)[1], 'numba' in sys.modules)"
    )
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    found = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "3", "False"]
