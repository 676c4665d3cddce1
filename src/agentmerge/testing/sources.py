"""The contract of every source: blocks read as the whole does, extents tell where bytes lie, identity tells changes."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.errors import MergeError, Note, Role, SourceError
from agentmerge.sources.source import Over
from agentmerge.tensors import DTYPES, Array, Block, TensorSpec
from agentmerge.testing.stacks import assert_same_bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agentmerge.sources.source import Extents, Source, Weights

SECOND = 1_000_000_000
"""Nanoseconds by which a file's time is moved to see whether that is noticed."""


def assert_source_contract(source: Source) -> None:
    """Raise AssertionError unless an open source keeps the contract of every source.

    - each spec stands under its own name, and what lies as it is in a file stands in the order of its bytes;
    - a block reads as the same elements of the whole tensor do, into `out` where it is given, from several threads;
    - reading beyond the end, an unknown tensor or an `out` that does not fit is an error, not a wrong number;
    - `stored` tells of every element of a tensor, once, how it is stored;
    - extents lie within their files, and the parts of a `verbatim` block one after another are its bytes;
    - of weights that are others' but for changes (`Over`), a block made of theirs is the block;
    - identity is JSON, the same each time, and `restat` notices a file that changed: the time of each file is moved
      by a second and put back;
    - role, folder, metadata and notes are what they say.

    Args:
        source: open, of a few megabytes at most: every tensor is read whole.
    """
    _assert_described(source)
    _assert_specs(source.weights)
    for spec in source.weights.specs.values():
        whole = _assert_read_by_block(source.weights, spec)
        _assert_ends_known(source.weights, spec)
        _assert_extents(source.weights, spec, whole)
        _assert_stored(source.weights, spec)
        _assert_over(source.weights, spec, whole)
    _assert_read_by_threads(source.weights)
    _assert_identity(source)


def _assert_described(source: Source) -> None:
    found: dict[str, tuple[Any, type]] = {"text": (source.text, str)}
    found |= {"role": (source.role, Role)} if source.role is not None else {}
    found |= {f"metadata[{key!r}]": (text, str) for key, text in source.metadata.items()}
    found |= {f"notes[{i}]": (note, Note) for i, note in enumerate(source.notes)}
    for name, (value, kind) in found.items():
        if not isinstance(value, kind):
            raise AssertionError(f"source.{name} is {value!r}, expected {kind.__name__}")
    if not source.folder.path.is_dir():
        raise AssertionError(f"source.folder.path is {source.folder.path}, expected a folder that is there")


def _assert_specs(weights: Weights) -> None:
    if not weights.specs:
        raise AssertionError("source.weights.specs is empty, expected at least one tensor")
    for name, spec in weights.specs.items():
        if name != spec.name or spec.dtype not in DTYPES:
            raise AssertionError(f"specs[{name!r}] is {spec}, expected that name and a dtype that can be read")
    if list(weights.specs) != list(weights.specs):
        raise AssertionError("specs come in another order the second time")
    _assert_in_order_of_bytes(weights)


def _assert_in_order_of_bytes(weights: Weights) -> None:
    """Tensors that lie verbatim in one file: a merge reads them in the order of specs, so it should run forwards."""
    last: dict[Any, tuple[int, str]] = {}
    for spec in weights.specs.values():
        found = weights.extents(Block(spec, 0, spec.elements))
        if not found.verbatim or len(found.parts) != 1:
            continue
        (part,) = found.parts
        offset, name = last.get(part.file, (0, ""))
        if part.offset < offset:
            raise AssertionError(f"specs: {spec.name!r} stands behind {name!r}, but lies before it in the file")
        last[part.file] = part.offset, spec.name


def _assert_read_by_block(weights: Weights, spec: TensorSpec) -> Array:
    whole: Array = weights.read(Block(spec, 0, spec.elements))
    if whole.dtype != DTYPES[spec.dtype] or whole.shape != (spec.elements,):
        raise AssertionError(f"{spec.name}: read {whole.dtype} {whole.shape}, expected {spec.dtype} ({spec.elements},)")
    for block in _blocks(spec):
        place = f"{spec.name}: elements [{block.start}, {block.stop})"
        assert_same_bits(weights.read(block), whole[block.start : block.stop], place)
        out = np.empty(block.elements, whole.dtype)
        if weights.read(block, out) is not out:
            raise AssertionError(f"{place}: read did not return the `out` that it was given")
        assert_same_bits(out, whole[block.start : block.stop], f"{place}, into out")
    return whole


def _blocks(spec: TensorSpec) -> Iterator[Block]:
    """Nothing, the first, the last, a middle, and consecutive odd parts of the tensor."""
    n = spec.elements
    edges = {(0, 0), (n, n), (0, min(1, n)), (max(n - 1, 0), n), (n // 3, n - n // 3), (0, n)}
    edges |= {(low, min(low + 63, n)) for low in range(0, min(n, 4 * 63), 63)}
    return (Block(spec, start, stop) for start, stop in sorted(edges))


def _assert_ends_known(weights: Weights, spec: TensorSpec) -> None:
    n, dtype = spec.elements, DTYPES[spec.dtype]
    wrong = np.dtype(np.int16) if dtype != np.int16 else np.dtype(np.int32)
    _assert_refused(weights, Block(spec, 0, n + 1), None, "a block beyond the end")
    _assert_refused(weights, Block(spec, n + 1, n + 2), None, "a block behind the end")
    _assert_refused(weights, Block(spec, 0, n), np.empty(n + 1, dtype), "an `out` of another size")
    _assert_refused(weights, Block(spec, 0, n), np.empty(n, wrong), "an `out` of another dtype")
    unknown = TensorSpec(f"{spec.name}.of-no-checkpoint", spec.dtype, spec.shape)
    _assert_refused(weights, Block(unknown, 0, n), None, "a tensor that it does not have")


def _assert_refused(weights: Weights, block: Block, out: Array | None, what: str) -> None:
    try:
        weights.read(block, out)
    except (MergeError, ValueError):
        return
    raise AssertionError(f"{block.tensor.name}: read took {what}, expected SourceError or ValueError")


def _assert_extents(weights: Weights, spec: TensorSpec, whole: Array) -> None:
    for block in _blocks(spec):
        found = weights.extents(block)
        stored = _bytes_at(found)
        expected = whole[block.start : block.stop].tobytes()
        if found.verbatim and stored != expected:
            raise AssertionError(
                f"{spec.name}: the extents of [{block.start}, {block.stop}) are {len(stored)} bytes that differ from "
                f"the {len(expected)} that read gives, expected the same: they are said to be verbatim"
            )


def _assert_stored(weights: Weights, spec: TensorSpec) -> None:
    found = weights.stored(spec.name)
    if sum(part.elements for part in found) != spec.elements or any(part.dtype not in DTYPES for part in found):
        raise AssertionError(
            f"{spec.name}: stored is {found}, expected dtypes that can be read of {spec.elements} elements in all"
        )
    for part in found:
        if part.factors is not None:
            factors = np.broadcast_to(part.factors(0, part.elements), (part.elements,))
            low, high = part.elements // 3, part.elements - part.elements // 3
            some = np.broadcast_to(part.factors(low, high), (high - low,))
            assert_same_bits(some, factors[low:high], f"{spec.name}: the factors of [{low}, {high})")


def _assert_over(weights: Weights, spec: TensorSpec, whole: Array) -> None:
    for block in _blocks(spec):
        under = weights.under(block) if isinstance(weights, Over) else None
        if under is None or not isinstance(weights, Over):
            continue
        old, place = under[0].read(under[1]), f"{spec.name}: put_over of [{block.start}, {block.stop})"
        untouched, out = old.copy(), np.empty_like(whole, shape=old.shape)
        if weights.put_over(block, old, out) is not out:
            raise AssertionError(f"{place} did not return the `out` that it was given")
        assert_same_bits(out, whole[block.start : block.stop], place)
        assert_same_bits(old, untouched, f"{place}, what was given to it")
        if old.dtype == out.dtype:
            assert_same_bits(weights.put_over(block, old, old), out, f"{place}, in place")


def _bytes_at(extents: Extents) -> bytes:
    """What lies there, read part by part; AssertionError where a part ends beyond its file."""
    found = []
    for part in extents.parts:
        with part.file.borrow() as fd:
            data = os.pread(fd, part.nbytes, part.offset)
        if len(data) != part.nbytes:
            raise AssertionError(f"{part}: only {len(data)} bytes lie there")
        found.append(data)
    return b"".join(found)


def _assert_read_by_threads(weights: Weights) -> None:
    blocks = [Block(spec, 0, spec.elements) for spec in weights.specs.values()] * 4
    with ThreadPoolExecutor(8) as pool:
        found: Iterable[Array] = pool.map(weights.read, blocks)
        for block, array in zip(blocks, found, strict=True):
            assert_same_bits(array, weights.read(block), f"{block.tensor.name}: read by several threads")


def _assert_identity(source: Source) -> None:
    first = json.loads(json.dumps(source.identity.as_json()))
    if first != json.loads(json.dumps(source.identity.as_json())):
        raise AssertionError("identity.as_json() gives another answer the second time")
    if not source.identity.files:
        raise AssertionError("identity.files is empty, expected the files that hold the weights")
    source.identity.restat()
    for file in source.identity.files:
        path = source.identity.folder / file.name
        state = path.stat()
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + SECOND))
        try:
            source.identity.restat()
        except SourceError:
            continue
        finally:
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        raise AssertionError(f"{path} changed and identity.restat() did not notice it, expected SourceError")
    source.identity.restat()
