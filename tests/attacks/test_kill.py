"""A run killed at any moment harms nothing, shows nothing, and goes on to the same bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import merge, probe
from agentmerge.files.save import save
from agentmerge.testing import Sources, assert_same_tensors, make_agents, random_base, random_gram, read_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCRIPT = Path(__file__).parent / "killed_merges.py"
DIED = 99
WRITER = "agentmerge.files.writer"
STAGING = "agentmerge.files.staging"
JOURNAL = "agentmerge.files.journal"

STAGES: list[tuple[str, int, str]] = [
    ("agentmerge.engine.preflight:plan_of", 1, "after"),
    (f"{STAGING}:Staging.create", 1, "after"),
    ("os:pwrite", 1, "within"),  # the journal's first line
    (f"{JOURNAL}:Journal.begin", 1, "after"),
    (f"{WRITER}:preallocate", 1, "before"),
    (f"{WRITER}:preallocate", 3, "after"),
    ("os:pwrite", 3, "within"),  # a header
    *((f"{WRITER}:Writer.commit", n, when) for n in (1, 2, 9, 15) for when in ("before", "after")),
    *((f"{WRITER}:sync_data", n, "before") for n in (1, 9)),
    *((f"{JOURNAL}:write_from", n, when) for n in (2, 3, 10, 16) for when in ("before", "after")),
    *((f"{WRITER}:Writer.write", n, when) for n in (1, 2, 40, 84) for when in ("before", "after")),
    *(("os:pwrite", n, "within") for n in range(8, 110, 14)),
    ("agentmerge.engine.merge:record_of", 1, "before"),
    (f"{WRITER}:Writer.finish", 1, "before"),
    *((f"{WRITER}:write_file", n, when) for n in (1, 2, 3, 4) for when in ("before", "after")),
    *(("pathlib:Path.rename", n, when) for n in (1, 2, 3) for when in ("before", "after")),
    (f"{STAGING}:Staging.publish", 1, "before"),
    (f"{STAGING}:Staging.clear", 1, "before"),
    (f"{STAGING}:Staging.clear", 1, "after"),
    (f"{STAGING}:sync_folder", 1, "before"),
    (f"{STAGING}:Staging._swap", 1, "before"),
    (f"{STAGING}:sync_folder", 2, "before"),
    (f"{STAGING}:Staging.publish", 1, "after"),
]


class Killer:
    """Does jobs in processes that may die."""

    def __init__(self) -> None:
        command = [sys.executable, "-W", "ignore", str(SCRIPT)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, recipe: dict[str, Any], out: Path, **job: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"recipe": recipe, "out": str(out), **job}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    process = Killer()
    yield process
    process.close()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """About 360 KB each, in five tensors and one of integers: 84 blocks, six shards."""
    shapes = {f"model.layers.{i}.mlp.up_proj.weight": (97, 331) for i in range(5)} | {"model.norm.weight": (331,)}
    base = {**random_base(5, shapes), "model.rotary.ids": np.arange(5000)}
    return make_agents(tmp_path_factory.mktemp("sources"), base=base, shard_size=90_000)


def recipe_of(sources: Sources, **sections: Any) -> dict[str, Any]:
    output = {"shard_size": 90_000, "rounding": "stochastic"}
    return sources.recipe("ram+", run={"block_size": 4096, "workers": 2}, output=output, **sections)


@pytest.fixture(scope="module")
def expected(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Every file of an uninterrupted run."""
    out = tmp_path_factory.mktemp("expected") / "out"
    merge(recipe_of(sources), out)
    return files_of(out)


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file; the record less its timing."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    record = json.loads(found["merge_record.json"])
    del record["timing"]
    return {**found, "merge_record.json": json.dumps(record).encode()}


def state_of(sources: Sources) -> dict[str, tuple[bytes, int]]:
    folders = (sources.base, *sources.agents.values())
    return {str(p): (p.read_bytes(), p.stat().st_mtime_ns) for folder in folders for p in folder.rglob("*")}


def looks_like_a_model(folder: Path) -> bool:
    return folder.exists() and any(path.suffix in (".json", ".safetensors") for path in folder.iterdir())


def no_other_folder_beside(out: Path) -> bool:
    return {path.name for path in out.parent.iterdir()} <= {out.name, f".{out.name}.agentmerge"}


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: f"{stage[0].split(':')[1]}-{stage[1]}-{stage[2]}")
def test_killed_at_any_stage_it_goes_on_to_the_same_bytes(
    stage: tuple[str, int, str], killer: Killer, sources: Sources, expected: dict[str, bytes], tmp_path: Path
) -> None:
    before, out, recipe = state_of(sources), tmp_path / "out", recipe_of(sources)
    assert killer.do(recipe, out, die=stage)["status"] == DIED
    if looks_like_a_model(out):
        assert files_of(out) == expected
        return
    assert no_other_folder_beside(out)
    found = killer.do(recipe, out)
    assert found["status"] == 0, found["error"]
    assert files_of(out) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert state_of(sources) == before


def test_kill_9_at_many_moments(killer: Killer, sources: Sources, expected: dict[str, bytes], tmp_path: Path) -> None:
    """Twenty kills of one and the same merge, then peace."""
    out, recipe, before = tmp_path / "out", recipe_of(sources), state_of(sources)
    kills = 0
    for i in range(20):
        status = killer.do(recipe, out, delay=0.01 + 0.004 * i)["status"]
        if status == 0 or looks_like_a_model(out):
            break
        kills += status == -9
        assert not looks_like_a_model(out)
    assert kills > 0
    if not looks_like_a_model(out):
        assert killer.do(recipe, out)["status"] == 0
    assert files_of(out) == expected
    assert state_of(sources) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("delay", [0.02, 0.05, 0.08, 0.12, 0.2])
def test_kill_9_once(
    delay: float, killer: Killer, sources: Sources, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out, recipe = tmp_path / "out", recipe_of(sources)
    killer.do(recipe, out, delay=delay)
    if not looks_like_a_model(out):
        assert killer.do(recipe, out)["status"] == 0
    assert files_of(out) == expected


def test_two_kills_in_different_passes(
    killer: Killer, sources: Sources, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out, recipe = tmp_path / "out", recipe_of(sources)
    for stage in (("os:pwrite", 9, "within"), (f"{WRITER}:Writer.write", 60, "before")):
        assert killer.do(recipe, out, die=stage)["status"] == DIED
    for call in (1, 2):
        assert killer.do(recipe, out, die=(f"{WRITER}:write_file", call, "after"))["status"] == DIED
    assert killer.do(recipe, out)["status"] == 0
    assert files_of(out) == expected


def test_what_was_finished_is_not_done_again(killer: Killer, sources: Sources, tmp_path: Path) -> None:
    out, recipe = tmp_path / "out", recipe_of(sources)
    first = killer.do(recipe, out, die=(f"{WRITER}:Writer.finish", 1, "before"))
    again = killer.do(recipe, out)
    assert [phase for phase, _ in first["phases"]] == ["fold 0", "map"]
    assert all(total > 1_000_000 for _, total in first["phases"])
    assert again["phases"] == [["fold 0", 0], ["map", 0]]


def test_it_goes_on_with_other_workers_and_blocks_to_the_same_tensors(
    killer: Killer, sources: Sources, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out, recipe = tmp_path / "out", recipe_of(sources)
    assert killer.do(recipe, out, die=(f"{WRITER}:Writer.write", 80, "after"))["status"] == DIED
    found = killer.do({**recipe, "run": {"block_size": 100_000, "workers": 1}}, out)
    assert found["status"] == 0, found["error"]
    files = files_of(out)
    different = {name for name in expected if files[name] != expected[name]}
    assert different <= {"merge_record.json"}  # which says how the work was done


CHANGES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "recipe.seed was 0, is 1": lambda recipe: {**recipe, "seed": 1},
    "recipe.method.rescale was 0.1, is 0.2": lambda r: {**r, "method": {"name": "ram+", "rescale": 0.2}},
    "recipe.output.dtype": lambda recipe: {**recipe, "output": {**recipe["output"], "dtype": "float32"}},
    "recipe.rules was []": lambda recipe: {**recipe, "rules": [{"tensors": "*norm*", "take": "base"}]},
    "sources.code.source was": lambda r: {**r, "agents": {**r["agents"], "code": r["agents"]["code"] + "/."}},
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_recipe_does_not_resume_and_says_what_differs(
    what: str, killer: Killer, sources: Sources, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out, recipe = tmp_path / "out", recipe_of(sources)
    assert killer.do(recipe, out, die=(f"{WRITER}:Writer.write", 80, "after"))["status"] == DIED
    found = killer.do(CHANGES[what](recipe), out)
    assert found["status"] == 2
    assert "holds an unfinished merge of other inputs" in found["error"]
    assert what in found["error"]
    assert killer.do(recipe, out)["status"] == 0  # the earlier command still goes on
    assert files_of(out) == expected


def test_a_changed_source_does_not_resume_and_overwrite_starts_over(killer: Killer, tmp_path: Path) -> None:
    own = make_agents(tmp_path / "in")
    out, recipe = tmp_path / "out", own.recipe("ram+", run={"block_size": 4096})
    assert killer.do(recipe, out, die=(f"{WRITER}:Writer.finish", 1, "before"))["status"] == DIED
    (own.agents["tool"] / "model.safetensors").touch()
    found = killer.do(recipe, out)
    assert found["status"] == 2
    assert "sources.tool.files" in found["error"]
    assert killer.do(recipe, out, overwrite=True)["status"] == 0
    merge(recipe, tmp_path / "fresh")
    assert_same_tensors(read_checkpoint(out), read_checkpoint(tmp_path / "fresh"))


@pytest.mark.parametrize(("first", "second"), [(True, False), (False, True)])
def test_a_saved_survey_may_be_used_or_left_out_when_it_goes_on(
    *, first: bool, second: bool, killer: Killer, sources: Sources, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out, recipe = tmp_path / "out", recipe_of(sources)
    probe(recipe).save(tmp_path / "survey.json")
    with_survey = {**recipe, "run": {**recipe["run"], "survey": str(tmp_path / "survey.json")}}
    jobs = {True: with_survey, False: recipe}
    for call in (40, 30):
        job = {"die": (f"{WRITER}:Writer.write", call, "after")}
        assert killer.do(jobs[first], out, **job)["status"] == DIED
    found = killer.do(jobs[second], out)
    assert found["status"] == 0, found["error"]
    files = files_of(out)
    assert {name for name in expected if files[name] != expected[name]} <= {"merge_record.json"}


@pytest.mark.parametrize("die", [(f"{WRITER}:Writer.write", 3, "after"), (f"{WRITER}:Writer.finish", 1, "before")])
def test_a_merge_that_keeps_goes_on_to_the_same_bytes_but_not_with_other_grams(
    die: tuple[str, int, str], killer: Killer, sources: Sources, tmp_path: Path
) -> None:
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(5)]
    keep, rng = tmp_path / "keep", np.random.default_rng(0)
    save(keep, {name: random_gram(rng, (331, 331)) for name in names})
    recipe = {**recipe_of(sources), "method": "wudi_auto", "keep": str(keep)}
    merge(recipe, tmp_path / "expected")
    for name in ("out", "other"):
        assert killer.do(recipe, tmp_path / name, die=die)["status"] == DIED
    found = killer.do(recipe, tmp_path / "out")
    assert found["status"] == 0, found["error"]
    assert files_of(tmp_path / "out") == files_of(tmp_path / "expected")
    save(keep, {name: random_gram(rng, (331, 331)) for name in names})
    found = killer.do(recipe, tmp_path / "other")
    assert (found["status"], "sources.keep.files" in found["error"]) == (2, True)


# --overwrite

SWAP = [
    (f"{STAGING}:Staging.clear", 1, "after"),
    (f"{STAGING}:Staging._swap", 1, "before"),
    *(("pathlib:Path.rename", n, when) for n in (7, 8) for when in ("before", "after")),
    (f"{STAGING}:sync_folder", 2, "before"),
    (f"{STAGING}:Staging._swap", 1, "after"),
]


@pytest.mark.parametrize("stage", SWAP, ids=str)
def test_an_interrupted_swap_is_put_right(
    stage: tuple[str, int, str], killer: Killer, sources: Sources, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out, recipe = tmp_path / "out", recipe_of(sources)
    old = {"config.json": b"old", "model.safetensors": b"old"}
    out.mkdir()
    for name, content in old.items():
        (out / name).write_bytes(content)
    assert killer.do(recipe, out, die=stage, overwrite=True)["status"] == DIED
    refused = killer.do(recipe, out)  # any start puts the swap right, then sees that OUT is taken
    assert refused["status"] == 2
    assert "not empty" in refused["error"]
    now = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert now == old or files_of(out) == expected
    found = killer.do(recipe, out, overwrite=True)
    assert found["status"] == 0, found["error"]
    assert files_of(out) == expected
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


# a damaged journal


@pytest.mark.parametrize("bit", [3, 100, 2_000, 5_000, 9_999, 20_000, 40_003])
def test_a_flipped_bit_in_the_journal_costs_work_and_changes_no_byte(
    bit: int, killer: Killer, sources: Sources, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out, recipe = tmp_path / "out", recipe_of(sources)
    assert killer.do(recipe, out, die=(f"{WRITER}:Writer.finish", 1, "before"))["status"] == DIED
    journal = tmp_path / ".out.agentmerge" / ".journal.jsonl"
    content = bytearray(journal.read_bytes())
    content[bit // 8 * 7919 % len(content)] ^= 1 << bit % 8
    journal.write_bytes(content)
    found = killer.do(recipe, out)
    assert found["status"] == 0, found["error"]
    assert files_of(out) == expected


def test_a_digit_of_a_count_in_the_journal_is_not_believed(
    killer: Killer, sources: Sources, expected: dict[str, bytes], tmp_path: Path
) -> None:
    out, recipe = tmp_path / "out", recipe_of(sources)
    assert killer.do(recipe, out, die=(f"{WRITER}:Writer.finish", 1, "before"))["status"] == DIED
    journal = tmp_path / ".out.agentmerge" / ".journal.jsonl"
    content = bytearray(journal.read_bytes())
    at = content.index(b'"exactly":[[') + len(b'"exactly":[[')
    content[at] = ord("9") if content[at] != ord("9") else ord("8")
    journal.write_bytes(content)
    assert killer.do(recipe, out)["status"] == 0
    assert files_of(out) == expected
