"""A plan decides everything from headers: jobs, blocks, places, sizes; it reads no tensor."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import Recipe
from agentmerge.engine import estimate
from agentmerge.engine.estimate import blocks
from agentmerge.engine.preflight import planned
from agentmerge.engine.reads import check_output
from agentmerge.errors import OutputError, SourceError
from agentmerge.sources.folder import FolderWeights
from agentmerge.sources.sampled import PIECE
from agentmerge.tensors import LEAF
from agentmerge.testing import CONFIG, Sources, make_agents, random_base, read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from agentmerge.engine.plan import Plan
    from agentmerge.tensors import Array, Block

NORM = "model.norm.weight"


def plan_for(sources: Sources, method: Any = "ram+", **sections: Any) -> AbstractContextManager[Plan]:
    return planned(Recipe.parse(sources.recipe(method, **sections)))


def test_a_plan_reads_headers_and_samples_only(tiny: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, read = [], FolderWeights.read

    def sampled(weights: FolderWeights, block: Block, out: Array | None = None) -> Array:
        seen.append(block)
        return read(weights, block, out)

    monkeypatch.setattr(FolderWeights, "read", sampled)
    with plan_for(tiny) as plan:
        assert max(block.elements for block in seen) <= PIECE
        assert len(seen) == 4 * sum(len(spec.shape) > 1 for spec in plan.family.base.specs.values())
        assert len(plan.merged) == 5
        assert estimate.output_bytes(plan) > estimate.input_bytes(plan) / 4
        assert estimate.memory_bytes(plan) > 0


def test_every_tensor_has_a_job_in_the_bases_order(tiny: Sources) -> None:
    with plan_for(tiny) as plan:
        assert [job.name for job in plan.jobs] == list(read_checkpoint(tiny.base))
        assert plan.names == ("code", "memory", "tool")


@pytest.mark.parametrize("block_size", [4096, 5000, 100_000, 10**9])
def test_blocks_cover_every_element_once_at_multiples_of_the_leaf(tiny: Sources, block_size: int) -> None:
    with plan_for(tiny, run={"block_size": block_size}) as plan:
        for job in plan.jobs:
            found = list(blocks(job, block_size))
            assert [block.start for block in found] == [0, *(block.stop for block in found[:-1])]
            assert found[-1].stop == job.tensor.elements
            assert all(block.start % LEAF == 0 for block in found)
            assert all(block.elements * 2 <= max(block_size, 2 * LEAF) for block in found)


def test_blocks_shrink_where_many_workers_hold_many_agents(tiny: Sources) -> None:
    sizes = []
    for workers in (1, 2, 16, 100, 1000):
        with plan_for(tiny, run={"workers": workers}) as plan:
            sizes.append(estimate.block_size(plan))
            buffers = estimate.memory_bytes(plan) - estimate.resident(
                plan
            )  # the tiny tensors fill no block, so at most what blocks would take
            assert buffers <= 1 << 30
    assert sizes[:3] == [8 << 20, 8 << 20, 8 << 20]
    assert sizes[3:] == [(1 << 30) * 2 // (workers * (4 * 2 + 4)) for workers in (100, 1000)]


def test_torch_counts_where_whole_matrices_imported_it(tiny: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for method in ({"name": "ram"}, {"name": "tsv_m", "device": "cpu"}):
        with planned(Recipe.parse(tiny.recipe(method))) as plan:
            for loaded in (True, False):
                if loaded:
                    monkeypatch.setitem(sys.modules, "torch", sys)
                else:
                    monkeypatch.delitem(sys.modules, "torch")
                found[method["name"], loaded] = estimate.memory_bytes(plan)
        monkeypatch.undo()
    assert found["ram", True] == found["ram", False]
    assert found["tsv_m", True] == found["tsv_m", False] + estimate.TORCH


@pytest.mark.parametrize("count", [24, 64])
@pytest.mark.parametrize("workers", [1, 2, 16])
def test_many_agents_are_merged_in_400_mb_by_smaller_blocks(tmp_path: Path, count: int, workers: int) -> None:
    large = (1 << 14, 1 << 9)  # eight million elements, which no file holds here
    with plan_for(make_agents(tmp_path, agents=1), run={"workers": workers}) as plan:
        many = {f"agent{t}": plan.family.agents["code"] for t in range(count)}
        family = replace(plan.family, agents=many)
        jobs = [replace(job, tensor=replace(job.tensor, shape=large)) for job in plan.jobs]
        plan = replace(plan, family=family, jobs=tuple(jobs))
        size = estimate.block_size(plan)
        assert 1 << 16 <= size <= 8 << 20
        assert estimate.memory_bytes(plan) <= 400_000_000
        assert size * workers > 2_000_000, "so small blocks would cost more than what they hold"


def test_importance_counts_among_what_a_block_takes(tiny: Sources, tmp_path: Path) -> None:
    drawn = {name: np.ones(array.shape, np.float32) for name, array in read_checkpoint(tiny.base).items()}
    folder = write_checkpoint(tmp_path / "importance", drawn, config={})
    agents = {name: {"source": str(path), "importance": str(folder)} for name, path in tiny.agents.items()}
    with plan_for(tiny, "fisher", agents=agents, run={"workers": 50}) as plan:
        assert estimate.block_size(plan) == (1 << 30) * 4 // 7 * 2 // (50 * (4 * 2 + 3 * 4 + 4))


def test_blocks_of_a_part_begin_and_end_with_it(tiny: Sources) -> None:
    with plan_for(tiny, run={"block_size": 4096}) as plan:
        job = plan.jobs[1]
        found = list(blocks(job, 4096, 2 * LEAF, job.tensor.elements))
        assert found[0].start == 2 * LEAF
        assert found[-1].stop == job.tensor.elements


def test_a_tensor_without_elements_has_no_block(tmp_path: Path) -> None:
    sources = make_agents(tmp_path, base={**random_base(0), "none": np.zeros((0, 4), np.float32)})
    with plan_for(sources) as plan:
        assert [list(blocks(job, 4096)) for job in plan.jobs if job.name == "none"] == [[]]


def test_auto_workers_are_few_and_explicit_ones_are_kept(tiny: Sources) -> None:
    with plan_for(tiny) as plan:
        assert 1 <= estimate.workers(plan) <= 16
    with plan_for(tiny, run={"workers": 37}) as plan:
        assert estimate.workers(plan) == 37


@pytest.mark.parametrize(
    ("wanted", "stored"), [("base", "BF16"), ("float32", "F32"), ("float16", "F16"), ("bfloat16", "BF16")]
)
def test_the_output_has_the_wanted_dtype_and_integers_keep_theirs(tmp_path: Path, wanted: str, stored: str) -> None:
    sources = make_agents(tmp_path, base={**random_base(0), "ids": np.arange(3)})
    with plan_for(sources, output={"dtype": wanted}) as plan:
        places = plan.layout.places
        assert places[NORM].spec.dtype == stored
        assert places["ids"].spec.dtype == "I64"
        assert {job.cast.dtype for job in plan.merged} == {stored}


def test_what_is_copied_says_why(tmp_path: Path) -> None:
    sources = make_agents(tmp_path, base={**random_base(0), "ids": np.arange(3)})
    with plan_for(sources, rules=[{"tensors": "*norm*", "take": "tool"}]) as plan:
        copied = {job.name: (job.taken_from, job.reason) for job in plan.jobs if job.method is None}
    assert copied == {NORM: ("tool", "rules.0 takes it from 'tool'"), "ids": ("base", "I64 tensors are not merged")}


def test_taking_from_an_agent_that_lacks_the_tensor_takes_the_bases(tiny: Sources) -> None:
    tensors = read_checkpoint(tiny.agents["tool"])
    del tensors[NORM]
    write_checkpoint(tiny.agents["tool"], tensors)
    rules = [{"tensors": "*norm*", "take": "tool"}]
    with plan_for(tiny, rules=rules, inputs={"missing": "base"}) as plan:
        assert plan.job(NORM).taken_from == "base"


def test_what_no_job_reads_need_not_match(tiny: Sources) -> None:
    tensors = read_checkpoint(tiny.agents["tool"])
    tensors[NORM] = np.zeros((3, 3), np.int64)
    write_checkpoint(tiny.agents["tool"], tensors)
    for rule in ({"take": "base"}, {"take": "code"}, {"skip": "tool"}):
        with plan_for(tiny, rules=[{"tensors": "*norm*", **rule}]) as plan:
            assert "tool" in plan.job(NORM).absent


def test_warnings_name_unused_rules_stray_shards_and_left_out_tensors(tiny: Sources) -> None:
    write_checkpoint(tiny.base, read_checkpoint(tiny.base), shard_size=9000)
    (tiny.base / "model.safetensors").unlink()
    (tiny.base / "stray.safetensors").write_bytes((tiny.agents["tool"] / "model.safetensors").read_bytes())
    tensors = {**read_checkpoint(tiny.agents["code"]), "value_head": np.zeros(3, np.float32)}
    write_checkpoint(tiny.agents["code"], tensors)
    with plan_for(tiny, rules=[{"tensors": "*.norn.*", "take": "base"}], inputs={"extra": "ignore"}) as plan:
        text = "\n".join(map(str, plan.notes))
    assert "rule '*.norn.*' matches no tensor" in text
    assert "not part of the checkpoint, ignored: stray.safetensors" in text
    assert "agent 'code': 1 tensors that the base lacks are left out" in text


def tied_agents(folder: Path, config: dict[str, Any]) -> Sources:
    """A base and agents that store their embedding twice."""
    base = random_base(0)
    sources = make_agents(folder, base=base, config=config)
    for path in (sources.base, *sources.agents.values()):
        tensors = read_checkpoint(path)
        write_checkpoint(path, {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}, config=config)
    return sources


def test_a_tied_head_has_no_job_but_a_second_place(tmp_path: Path) -> None:
    sources = tied_agents(tmp_path, {**CONFIG, "tie_word_embeddings": True})
    with plan_for(sources) as plan:
        assert "lm_head.weight" not in {job.name for job in plan.jobs}
        embedding = plan.job("model.embed_tokens.weight")
        assert [place.spec.name for place in embedding.places] == ["model.embed_tokens.weight", "lm_head.weight"]
        assert "lm_head.weight" in plan.layout.places


@pytest.mark.parametrize("tied", [False, None, "yes", 1])
def test_only_a_config_that_says_true_ties(tmp_path: Path, tied: Any) -> None:
    base = random_base(0)
    sources = make_agents(tmp_path, base=base, config={**CONFIG, "tie_word_embeddings": tied})
    with plan_for(sources) as plan:
        assert plan.family.tied is None


def test_a_nested_text_config_ties_too(tmp_path: Path) -> None:
    sources = tied_agents(tmp_path, {"text_config": {"tie_word_embeddings": True}})
    with plan_for(sources) as plan:
        assert plan.family.tied is not None


def test_the_identity_of_sources_tells_files_sizes_times_and_headers(tiny: Sources) -> None:
    with plan_for(tiny) as plan:
        found = plan.identities()
    assert list(found) == ["base", "code", "memory", "tool"]
    assert found["tool"]["source"] == str(tiny.agents["tool"])
    assert [set(file) for file in found["tool"]["files"]] == [{"name", "size", "mtime_ns", "header_sha256"}]


def test_the_scope_depends_on_agents_tensors_and_who_is_absent_but_not_on_the_method(tiny: Sources) -> None:
    def scope(method: Any = "ram+", **sections: Any) -> str:
        with plan_for(tiny, method, **sections) as plan:
            return plan.scope_id

    assert scope() == scope("ram") == scope({"name": "ram+s", "rescale": 0.3}, seed=3)
    others = {
        scope(rules=[{"tensors": "*norm*", "skip": "tool"}]),
        scope(rules=[{"tensors": "*norm*", "skip": "code"}]),
        scope(rules=[{"tensors": "*norm*", "take": "base"}]),
    }
    assert len(others | {scope()}) == 4


def test_a_source_that_changed_since_is_told(tiny: Sources) -> None:
    with plan_for(tiny) as plan:
        plan.restat()
        (tiny.agents["code"] / "model.safetensors").touch()
        with pytest.raises(SourceError, match="changed while in use"):
            plan.restat()


def test_the_output_must_lie_apart_from_the_sources(tiny: Sources, tmp_path: Path) -> None:
    with plan_for(tiny) as plan:
        check_output(plan, tmp_path / "out")
        check_output(plan, tiny.base.parent / "base2")
        for out in (tiny.base, tiny.base / "x", tiny.base.parent, tiny.agents["tool"] / ".." / "tool" / "y"):
            with pytest.raises(OutputError, match="lies in, or holds"):
                check_output(plan, out)


def test_a_failing_plan_closes_what_it_opened(tiny: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = read_checkpoint(tiny.agents["tool"])
    del tensors[NORM]
    write_checkpoint(tiny.agents["tool"], tensors)
    closed: list[str] = []
    close = FolderWeights.close
    monkeypatch.setattr(FolderWeights, "close", lambda self: closed.append(self) or close(self))
    with pytest.raises(ValueError, match="lacks 1"), plan_for(tiny):
        pass
    assert len(closed) == 4
