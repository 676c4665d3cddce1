"""What a killed merge may go on from, and what it must not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agentmerge import merge, sweep
from agentmerge.engine import runner
from agentmerge.errors import OutputError, RecipeError
from agentmerge.methods.resmerge import ResMerge
from agentmerge.progress import Silent
from agentmerge.testing import Sources, assert_same_tensors, read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("unsynced")
ONE_BY_ONE = {"workers": 1, "block_size": 4096}


class Killed(BaseException):
    """Stands for kill -9."""


class KillInMap(Silent):
    """Kills the run after some blocks of the map."""

    def __init__(self, blocks: int = 5) -> None:
        self.left, self.mapping = blocks, False

    def begin(self, phase: str, total: int) -> None:
        self.mapping = phase == "map"

    def advance(self, nbytes: int) -> None:
        self.left -= self.mapping
        if self.left == 0:
            raise Killed


@pytest.fixture(autouse=True)
def commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "COMMIT_SECONDS", -1.0)


def killed(recipe: object, out: Path, *, full: bool) -> None:
    with pytest.raises(Killed):
        merge(recipe, out, full=full, watch=KillInMap())
    assert not out.exists()


@pytest.mark.parametrize("before", [True, False])
def test_a_report_may_be_asked_for_or_dropped_between_a_kill_and_the_next_run(
    tiny: Sources, tmp_path: Path, before: bool
) -> None:
    recipe = tiny.recipe("ram+", run=ONE_BY_ONE)
    expected = merge(recipe, tmp_path / "expected", full=not before)
    killed(recipe, tmp_path / "out", full=before)
    record = merge(recipe, tmp_path / "out", full=not before)
    assert (record.retention, record.rounding, record.survey) == (
        expected.retention,
        expected.rounding,
        expected.survey,
    )
    assert_same_tensors(read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / "expected"))


def test_what_a_method_found_out_before_a_kill_stands_in_the_record(
    tiny: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, merged, update = tiny.recipe("resmerge", run=ONE_BY_ONE), [], ResMerge.update
    monkeypatch.setattr(ResMerge, "update", lambda *args: merged.append(args) or update(*args))
    expected = merge(recipe, tmp_path / "expected")
    matrices = len(merged)
    told = {kind: found["matrices"] for kind, found in expected.learned["resmerge"].items()}
    assert told.get("consensus", 0) + told.get("mean", 0) == matrices
    killed(recipe, tmp_path / "out", full=False)
    before = len(merged)
    record = merge(recipe, tmp_path / "out")
    assert len(merged) - before < matrices
    assert (record.learned, record.warnings) == (expected.learned, expected.warnings)
    assert_same_tensors(read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / "expected"))


def test_a_merge_does_not_go_on_when_a_config_changed(tiny: Sources, tmp_path: Path) -> None:
    recipe = tiny.recipe("ram+", run=ONE_BY_ONE)
    killed(recipe, tmp_path / "out", full=False)
    path = tiny.base / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "head_dim": 3}))
    with pytest.raises(OutputError, match=r"sources\.base\.config_sha256 was"):
        merge(recipe, tmp_path / "out")


def test_a_sweep_that_is_refused_at_one_output_leaves_nothing_of_the_others(tiny: Sources, tmp_path: Path) -> None:
    taken = tmp_path / "all" / "rescale=0.2"
    taken.mkdir(parents=True)
    (taken / "mine").touch()
    with pytest.raises(OutputError, match="not empty"):
        sweep(tiny.recipe("ram+"), "rescale", [0.1, 0.2], tmp_path / "all")
    assert [path.name for path in (tmp_path / "all").iterdir()] == ["rescale=0.2"]


def test_a_sweep_over_names_or_over_nothing_is_refused(tiny: Sources, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"method\.name"):
        sweep(tiny.recipe("ram+"), "name", ["ram", "ram_plus"], tmp_path / "all")
    with pytest.raises(RecipeError, match="no values"):
        sweep(tiny.recipe("ram+"), "rescale", [], tmp_path / "all")


def test_a_sweep_whose_merges_see_other_tensors_whole_is_refused(tiny: Sources, tmp_path: Path) -> None:
    recipe = tiny.recipe({"name": "dare", "then": "task_arithmetic"})
    with pytest.raises(RecipeError, match="the same tensors whole"):
        sweep(recipe, "then", ["task_arithmetic", "wudi"], tmp_path / "all")
    assert not (tmp_path / "all").exists()
