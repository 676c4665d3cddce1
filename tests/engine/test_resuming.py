"""What a killed merge may go on from, and what it must not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge import merge, sweep
from agentmerge.engine import runner
from agentmerge.errors import OutputError, RecipeError
from agentmerge.files.drafts import DRAFTS
from agentmerge.methods import calibrate, interference
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

    def begin(self, phase: str, total: int, **_: float) -> None:
        self.mapping = phase == "map"

    def advance(self, nbytes: int, **_: float) -> None:
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


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every matrix that is solved; all are dear enough to be kept."""
    found: list[int] = []
    solve = interference.solve

    def counted(*args: Any, **settings: Any) -> Any:
        found.append(1)
        return solve(*args, **settings)

    monkeypatch.setattr(interference, "solve", counted)
    monkeypatch.setattr(calibrate, "AGAIN", 0)
    return found


def test_every_matrix_is_solved_once_and_after_a_kill_only_what_was_not(
    tiny: Sources, tmp_path: Path, solved: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny.recipe("wudi_auto", run=ONE_BY_ONE)
    merge(recipe, tmp_path / "out")
    once = len(solved)
    with pytest.raises(Killed):
        merge(recipe, tmp_path / "killed", watch=KillInMap())
    assert (tmp_path / ".killed.agentmerge" / DRAFTS).exists()
    merge(recipe, tmp_path / "killed")
    assert len(solved) == 2 * once
    assert not list(tmp_path.rglob(DRAFTS))
    monkeypatch.setattr(calibrate, "AGAIN", 1e9)
    merge(recipe, tmp_path / "twice")
    assert len(solved) == 4 * once
    for other in ("killed", "twice"):
        assert_same_tensors(read_checkpoint(tmp_path / other), read_checkpoint(tmp_path / "out"))


def test_drafts_that_are_gone_or_damaged_are_solved_again(tiny: Sources, tmp_path: Path, solved: list[int]) -> None:
    recipe = tiny.recipe("wudi_auto", run=ONE_BY_ONE)
    merge(recipe, tmp_path / "out")
    for name in ("gone", "damaged"):
        with pytest.raises(Killed):
            merge(recipe, tmp_path / name, watch=KillInMap(1))
        drafts = tmp_path / f".{name}.agentmerge" / DRAFTS
        if name == "gone":
            drafts.unlink()
        else:
            drafts.write_bytes(bytes(255 - byte for byte in drafts.read_bytes()))
        before = len(solved)
        merge(recipe, tmp_path / name)
        assert len(solved) > before
        assert_same_tensors(read_checkpoint(tmp_path / name), read_checkpoint(tmp_path / "out"))


@pytest.mark.parametrize("swept", ["then.then.ridge", "density"])
def test_a_sweep_keeps_what_each_of_its_merges_solved_apart(
    tiny: Sources, tmp_path: Path, solved: list[int], monkeypatch: pytest.MonkeyPatch, swept: str
) -> None:
    """Settings of the inner method, and draws around it."""
    inner = {"name": "calibrate", "then": {"name": "wudi", "solver": "exact"}}
    recipe, values = tiny.recipe({"name": "dare", "density": 0.7, "then": inner}), [0.1, 0.5]
    sweep(recipe, swept, values, tmp_path / "kept")
    monkeypatch.setattr(calibrate, "AGAIN", 1e9)
    once = len(solved)
    sweep(recipe, swept, values, tmp_path / "again")
    assert len(solved) == 3 * once
    for value in values:
        kept, again = (read_checkpoint(tmp_path / name / f"{swept}={value}") for name in ("kept", "again"))
        assert_same_tensors(kept, again)
