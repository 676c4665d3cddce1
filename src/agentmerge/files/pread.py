"""The compiled loop of reading.py."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from agentmerge.kernels.cpu.loops.compiled import compiled
from agentmerge.kernels.cpu.loops.signatures import INTS

if TYPE_CHECKING:
    from agentmerge.tensors import Array

_PIECES = types.int64[:, ::1]
_pread: Any = types.ExternalFunction("pread", types.int64(types.int32, types.intp, types.uint64, types.int64))
_fadvise: Any = types.ExternalFunction("posix_fadvise", types.int32(types.int32, types.int64, types.int64, types.int32))
_WILLNEED = os.POSIX_FADV_WILLNEED


@compiled(types.int64(_PIECES, INTS, _PIECES))
def read(pieces: Array, addresses: Array, ahead: Array) -> int:
    """See reading.read; a piece is descriptor, offset, bytes."""
    for p in range(len(ahead)):
        _fadvise(np.int32(ahead[p, 0]), ahead[p, 1], ahead[p, 2], np.int32(_WILLNEED))
    for p in range(len(pieces)):
        done, wanted = np.int64(0), pieces[p, 2]
        while done < wanted:
            count = _pread(np.int32(pieces[p, 0]), addresses[p] + done, np.uint64(wanted - done), pieces[p, 1] + done)
            if count <= 0:
                return p
            done += count
    return len(pieces)
