"""Gram matrices of an agent's or the base's inputs under the base's names, one for each layer that has these inputs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.alike.names import common_name
from agentmerge.alike.view import FlatRange, RangeView
from agentmerge.errors import SourceError
from agentmerge.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.alike.family import Family
    from agentmerge.sources.source import Source
    from agentmerge.tensors import Array

SHARED = "shared"
"""In the files' metadata: JSON, the layers that have no matrix of their own, to the one whose inputs they share."""
TOLERANCE = 1e-3
"""By how much of the geometric mean of their diagonal two mirrored elements may differ: products in float32 may."""
UNDERFLOW = 1e-6
"""Of the largest element of the diagonal: what an element may be whose inputs are too small for their squares to be."""
ROWS = 512
"""Rows that are looked at together."""


def grams_alike(family: Family, grams: Source) -> Source:
    """Gram matrices of an agent or the base as the base's layers ask for them.

    A layer that shares its inputs with another one gets that one's matrix, and names differ by the prefixes that
    trainers put before them, as an agent's own may. What fits no tensor of the base keeps its name.

    Raises:
        SourceError: the metadata say which layers share their inputs, but not so that they can be read.
    """
    stored = {name: name for name in grams.specs} | _shared(grams)
    ours = _by_common_name(family.base)
    exact = {name: name for name in stored if name in family.base.specs}
    named = {ours.get(common_name(name), name): name for name in stored if name not in exact} | exact
    specs, ranges = {}, {}
    for target, name in named.items():
        spec = grams.specs[stored[name]]
        specs[target] = TensorSpec(target, spec.dtype, spec.shape)
        if target != stored[name]:
            ranges[target] = (FlatRange.all_of(grams.weights, spec.name),)
    return grams.seen_as(RangeView(grams.weights, specs, ranges)) if ranges else grams


def no_gram(values: Array) -> str | None:
    """What keeps [..., n, n] from being X^T X as far as a look at every element tells, in words; None for nothing.

    Its elements are finite, its diagonal is not negative and adds up to a number, mirrored elements are nearly the
    same, and none is larger than the two of the diagonal let the product of two inputs be.
    """
    for matrix in values.reshape(-1, *values.shape[-2:]):
        with np.errstate(all="ignore"):
            size = np.sqrt(np.diagonal(matrix).astype(np.float64))
            least = UNDERFLOW * size.max(initial=0.0) ** 2
            for low in range(0, len(matrix), ROWS):
                rows, mirrored = matrix[low : low + ROWS], matrix[:, low : low + ROWS].T
                if not np.isfinite(rows).all():
                    return "NaN or inf"
                if not (size[low : low + ROWS] >= 0).all():
                    return "a negative number on the diagonal"
                most = size[low : low + ROWS, None] * size
                if (abs(rows - mirrored) > TOLERANCE * most).any():
                    return "not symmetric"
                if (abs(rows) > (1 + TOLERANCE) * most + least).any():
                    return "an element larger than its diagonal lets it be"
            if not np.isfinite(size @ size):
                return "numbers too large to be added up"
    return None


def _shared(grams: Source) -> dict[str, str]:
    text = grams.metadata.get(SHARED, "{}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise _refused(grams, f"the metadata's '{SHARED}' is {text[:80]!r}", "a JSON object of tensor names")
    lacking = sorted({value for value in found.values() if value not in grams.specs})
    if lacking:
        raise _refused(grams, f"{lacking[0]} is said to be shared", "a tensor of that name")
    return {name: value for name, value in found.items() if name not in grams.specs}


def _refused(grams: Source, found: str, expected: str) -> SourceError:
    todo = "Make them again with `agentmerge grams`."
    return SourceError(f"{grams.text}: {found}", expected=expected, todo=todo, where=grams.where)


def _by_common_name(base: Source) -> Mapping[str, str]:
    """Common name to the base's; {} when two names become one."""
    found = {common_name(name): name for name in base.specs}
    return found if len(found) == len(base.specs) else {}
