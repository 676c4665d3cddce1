"""A stack is the sources' numbers, whoever reads them, and a read that fails names its source."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentmerge import Recipe, merge
from agentmerge.engine.blocks import Buffers, read_rows
from agentmerge.engine.estimate import blocks
from agentmerge.engine.preflight import planned
from agentmerge.errors import SourceError
from agentmerge.files import reading
from agentmerge.testing import make_agents

if TYPE_CHECKING:
    from agentmerge.engine.plan import Job, Plan
    from agentmerge.tensors import Block
    from agentmerge.testing import Sources

OPEN = Path("/proc/self/fd")


@pytest.mark.usefixtures("unsynced")
def test_the_output_is_the_same_without_the_compiled_reads(
    tiny: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny.recipe("ram+", run={"block_size": 4096})
    merge(recipe, tmp_path / "compiled")
    monkeypatch.setattr(reading, "supported", lambda: False)
    merge(recipe, tmp_path / "plain")
    for path in (tmp_path / "compiled").glob("*.safetensors"):
        assert path.read_bytes() == (tmp_path / "plain" / path.name).read_bytes()


@pytest.mark.parametrize("cut", ["base", "code", "tool"])
def test_a_source_that_is_cut_while_it_is_read_is_named(tmp_path: Path, cut: str) -> None:
    sources = make_agents(tmp_path)
    with planned(Recipe.parse(sources.recipe("ram"))) as plan:
        parts = [(job, block) for job in plan.merged for block in blocks(job, 4096)]
        read_rows(plan, *parts[0], Buffers(), parts[1])  # opens the files
        folder = sources.base if cut == "base" else sources.agents[cut]
        os.truncate(folder / "model.safetensors", 5000)
        with pytest.raises(SourceError, match=str(folder / "model.safetensors")):
            read_all(plan, parts)


@pytest.mark.skipif(not OPEN.exists(), reason="this system does not list open files")
def test_every_file_is_closed_after_an_error(tmp_path: Path) -> None:
    sources, before = make_agents(tmp_path), len(list(OPEN.iterdir()))
    with planned(Recipe.parse(sources.recipe("ram"))) as plan:
        parts = [(job, block) for job in plan.merged for block in blocks(job, 4096)]
        read_rows(plan, *parts[0], Buffers())
        assert len(list(OPEN.iterdir())) > before
        os.truncate(sources.agents["tool"] / "model.safetensors", 5000)
        with pytest.raises(SourceError):
            read_all(plan, parts)
    assert len(list(OPEN.iterdir())) == before


def read_all(plan: Plan, parts: list[tuple[Job, Block]]) -> None:
    for job, block in parts:
        read_rows(plan, job, block, Buffers(), parts[-1])
