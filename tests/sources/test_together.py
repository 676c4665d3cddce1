"""Blocks of many sources are what each source reads, however they are read; an error names its file."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import pack
from agentmerge.alike.view import FlatRange, RangeView
from agentmerge.errors import BASE, Role, SourceError
from agentmerge.files import reading
from agentmerge.sources.opening import opened
from agentmerge.sources.together import read_blocks
from agentmerge.tensors import DTYPES, Block, TensorSpec
from agentmerge.testing import make_agents, read_checkpoint, write_checkpoint
from agentmerge.testing.stacks import assert_same_bits
from tests.sources.test_delta import UP, changes, put_delta

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentmerge.sources.source import Weights
    from agentmerge.tensors import Array

Wanted = list[tuple[Any, Block]]


@pytest.fixture
def wanted(tmp_path: Path) -> Iterator[Wanted]:
    rng = np.random.default_rng(0)
    with ExitStack() as stack:
        found: list[tuple[Weights, Block]] = []
        for name in ("base", "code", "tool"):
            tensors = {t: rng.standard_normal((40, 50)).astype(np.float32) for t in ("a", "b")}
            weights = stack.enter_context(opened(None, str(write_checkpoint(tmp_path / name, tensors)))).weights
            found += [(weights, Block(spec, 17, 1999)) for spec in weights.specs.values()]
        ab, zeros = tuple(FlatRange.all_of(weights, name) for name in "ab"), FlatRange(None, "", 0, 9)
        specs = {"ab": TensorSpec("ab", "F32", (4000,)), "a0": TensorSpec("a0", "F64", (2009,))}
        view = RangeView(weights, specs, {"ab": ab, "a0": (ab[0], zeros)})
        yield [*found, *((view, Block(spec, 5, spec.elements)) for spec in specs.values())]


def room(wanted: Wanted) -> list[Array]:
    return [np.zeros(block.elements, DTYPES[weights.specs[block.tensor.name].dtype]) for weights, block in wanted]


@pytest.mark.parametrize("compiled", [True, False])
def test_blocks_are_what_each_source_reads(wanted: Wanted, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(reading, "supported", lambda: False)
    arrays = room(wanted)
    read_blocks(wanted, arrays, ahead=wanted)
    for (weights, block), array in zip(wanted, arrays, strict=True):
        assert array.tobytes() == weights.read(block).tobytes()


@pytest.mark.skipif(not reading.supported(), reason="this system lacks pread or posix_fadvise")
def test_only_what_is_not_verbatim_is_read_the_slow_way(wanted: Wanted, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = []
    read = RangeView.read
    monkeypatch.setattr(
        RangeView, "read", lambda self, block, out: slow.append(block.tensor.name) or read(self, block, out)
    )
    read_blocks(wanted, room(wanted))
    assert slow == ["a0"]


def test_a_file_that_is_cut_is_named(wanted: Wanted, tmp_path: Path) -> None:
    read_blocks(wanted, room(wanted))
    os.truncate(tmp_path / "code" / "model.safetensors", 9000)
    with pytest.raises(SourceError, match=r"code/model\.safetensors: tensor 'b': truncated"):
        read_blocks(wanted, room(wanted))


def test_nothing_wanted_is_nothing_read(wanted: Wanted) -> None:
    read_blocks([], [])
    read_blocks([], [], ahead=wanted)


def test_a_delta_over_a_base_that_was_just_read_does_not_read_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_agents(tmp_path / "in")
    before, after = read_checkpoint(made.base), read_checkpoint(made.agents["tool"])
    pack(made.base, made.agents["tool"], tmp_path / "packed.safetensors")
    put_delta(tmp_path / "sparse.safetensors", changes(before, after), 1)
    for delta in ("packed", "sparse"):
        with (
            opened(BASE, str(made.base)) as base,
            opened(Role("tool"), str(tmp_path / f"{delta}.safetensors"), base) as agent,
        ):
            block = Block(base.specs[UP], 128, 6000)
            into = [np.empty(block.elements, before[UP].dtype) for _ in range(2)]
            reads: list[Block] = []
            monkeypatch.setattr(base.weights, "read", lambda block, out=None, reads=reads: reads.append(block))
            read_blocks([(base.weights, block), (agent.weights, block)], into)
            assert not reads
            assert_same_bits(into[0], before[UP].reshape(-1)[128:6000], delta)
            assert_same_bits(into[1], after[UP].reshape(-1)[128:6000], delta)
            read_blocks([(agent.weights, block)], into[1:])
            assert len(reads) == 1
