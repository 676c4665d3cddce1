"""Memory that a thread uses again lies in step with the pages of a file, and is no other thread's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np

from agentmerge.files.positional import PAGE
from agentmerge.files.scratch import Scratch
from agentmerge.tensors import DTYPES, Block, TensorSpec


def test_a_block_lies_in_step_with_its_place_in_a_file() -> None:
    scratch = Scratch()
    for dtype, offset in (("BF16", 0), ("BF16", 4098), ("F32", 1002), ("F64", 8), ("U8", 4095), ("BF16", 77)):
        for elements in (0, 1, 5000, 3):
            array = scratch.for_block(Block(TensorSpec("w", dtype, (elements,)), 0, elements), offset)
            size = DTYPES[dtype].itemsize
            assert array.dtype == DTYPES[dtype]
            assert array.size == elements
            assert not elements or array.ctypes.data % PAGE == offset % PAGE - offset % PAGE % size
            assert array.flags.aligned
            array[:] = 1


def test_the_same_memory_comes_again_and_another_thread_has_its_own() -> None:
    scratch, both = Scratch(), Barrier(2)

    def place(_: int) -> tuple[int, int]:
        first = scratch.take(1000, np.dtype(np.float32)).ctypes.data
        both.wait(10)
        return first, scratch.take(10, np.dtype(np.float32)).ctypes.data

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(place, range(2))
    assert one[0] == one[1]
    assert two[0] == two[1]
    assert one[0] != two[0]
