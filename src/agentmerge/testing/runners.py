"""The contract of every runner: the bytes and answers of the local one, errors that arrive, work that resumes."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from agentmerge.api import merge, probe, sweep
from agentmerge.engine.local import LocalRunner
from agentmerge.errors import DataError
from agentmerge.methods.base import MergeMethod, added
from agentmerge.record import RECORD
from agentmerge.tensors import as_float32
from agentmerge.testing.checkpoints import Sources, make_agents, random_base, read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from agentmerge.engine.runner import Runner
    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array, Stack

METHODS: tuple[dict[str, Any], ...] = (
    {"name": "task_arithmetic"},
    {"name": "ram_plus"},
    {"name": "ties", "density": 0.3},
    {"name": "calibrate", "then": {"name": "dare", "density": 0.7, "then": "ram"}},
    {"name": "wudi", "solver": "exact"},
)
"""No pass before the merge, one, three, one over a merge, and whole matrices at a time."""

SECTIONS: dict[str, Any] = {
    "rules": [{"tensors": "lm_head*", "take": "tool"}, {"tensors": "*norm*", "skip": "memory"}],
    "output": {"rounding": "stochastic", "shard_size": 30_000},
    "run": {"block_size": 4096, "workers": 2},
}


FAILURE = "a method failed, as the contract wants it"


def assert_runner_contract(runner: Runner) -> None:
    """Raise AssertionError unless a runner keeps the contract of every runner, used through `agentmerge.merge`.

    - a merge, a probe and a sweep give the bytes, records and answers that `LocalRunner` gives;
    - an error of a method and numbers that forbid a merge reach the caller, and no output appears;
    - a merge that was interrupted goes on from what was committed, to the same bytes.

    Args:
        runner: used for several merges, one after another.
    """
    with TemporaryDirectory(prefix="agentmerge-contract-") as name:
        folder = Path(name)
        sources = make_agents(folder / "in", base={**random_base(7), "model.rotary.inv_step": np.arange(5)})
        _assert_merges_alike(runner, sources, folder)
        _assert_probes_alike(runner, sources)
        _assert_sweeps_alike(runner, sources, folder)
        _assert_errors_arrive(runner, sources, folder)
        _assert_resumes(runner, sources, folder)


def _assert_merges_alike(runner: Runner, sources: Sources, folder: Path) -> None:
    for i, method in enumerate(METHODS):
        recipe = sources.recipe(method, **SECTIONS)
        merge(recipe, folder / f"merge-{i}", runner=runner)
        merge(recipe, folder / f"local-{i}", runner=LocalRunner())
        _assert_same_folders(folder / f"merge-{i}", folder / f"local-{i}", method["name"])


def _assert_probes_alike(runner: Runner, sources: Sources) -> None:
    for full in (False, True):
        recipe = sources.recipe("ram_plus", run=SECTIONS["run"])
        found, expected = (probe(recipe, full=full, runner=one) for one in (runner, LocalRunner()))
        _assert_same_data(found.model_dump(mode="json"), expected.model_dump(mode="json"), f"probe, full={full}")


def _assert_sweeps_alike(runner: Runner, sources: Sources, folder: Path) -> None:
    recipe = sources.recipe("ram_plus", **SECTIONS)
    sweep(recipe, "rescale", [0.0, 0.1, 0.5], folder / "sweep", runner=runner)
    sweep(recipe, "rescale", [0.0, 0.1, 0.5], folder / "sweep-local", runner=LocalRunner())
    for out in sorted((folder / "sweep-local").iterdir()):
        _assert_same_folders(folder / "sweep" / out.name, out, f"sweep, {out.name}")


def _assert_errors_arrive(runner: Runner, sources: Sources, folder: Path) -> None:
    broken = {name: array.copy() for name, array in read_checkpoint(sources.agents["code"]).items()}
    broken["model.norm.weight"][1] = float("nan")
    agents = {**sources.agents, "code": write_checkpoint(folder / "broken", broken)}
    forbidden = Sources(sources.base, agents).recipe("ram_plus")
    failing = sources.recipe(Failing(tensor="model.norm.weight"))
    _assert_fails(runner, forbidden, folder / "forbidden", "NaN", DataError)
    _assert_fails(runner, failing, folder / "failed", FAILURE, Exception)


def _assert_fails(runner: Runner, recipe: dict[str, Any], out: Path, text: str, kind: type[Exception]) -> None:
    try:
        merge(recipe, out, runner=runner)
    except kind as error:
        if text not in str(error):
            raise AssertionError(f"the error says {str(error)!r:.200}, expected it to say {text!r}") from error
    else:
        raise AssertionError(f"a merge that can't be done returned, expected {kind.__name__} with {text!r}")
    if out.exists():
        raise AssertionError(f"{out.name} appeared although the merge failed")


def _assert_resumes(runner: Runner, sources: Sources, folder: Path) -> None:
    """Interrupted when half of the last pass is done: what was committed is not read again."""
    recipe = sources.recipe("ram_plus", run={"block_size": 4096, "workers": 1})
    out = folder / "resumed"
    watch = _Interrupting()
    try:
        merge(recipe, out, runner=runner, watch=watch)
    except Interrupted:
        pass
    else:
        raise AssertionError("a merge went on although its watch raised")
    again = _Totals()
    merge(recipe, out, runner=runner, watch=again)
    if sum(again.totals) >= sum(watch.totals):
        raise AssertionError(f"resuming read {again.totals} bytes per pass of {watch.totals}, expected fewer")
    merge(recipe, folder / "uninterrupted", runner=LocalRunner())
    _assert_same_folders(out, folder / "uninterrupted", "resumed")


class Interrupted(BaseException):
    """What a watch raises to interrupt a merge, as Ctrl-C would."""


class _Totals:
    """A watch that keeps how many bytes each pass has to read."""

    def __init__(self) -> None:
        self.totals: list[int] = []
        self.done = 0

    def begin(self, phase: str, total: int, **_: float) -> None:
        self.totals.append(total)
        self.done = 0

    def advance(self, amount: int, **_: float) -> None:
        self.done += amount


class _Interrupting(_Totals):
    """A watch that raises in the second pass, half way through."""

    def advance(self, amount: int, **_: float) -> None:
        super().advance(amount)
        if len(self.totals) == 2 and 2 * self.done > self.totals[1]:
            raise Interrupted


class Failing(MergeMethod):
    """Raises when it comes to one tensor; else the first agent's changes."""

    name: Literal["contract_failing"] = "contract_failing"
    tensor: str

    def merge(self, stack: Stack, survey: Survey) -> Array:
        """RuntimeError at the tensor."""
        if stack.block.tensor.name == self.tensor:
            raise RuntimeError(FAILURE)
        return added(stack.base, stack.values(0) - as_float32(stack.base))


def _assert_same_folders(found: Path, expected: Path, what: str) -> None:
    names, others = map(_files_of, (found, expected))
    if names != others:
        raise AssertionError(f"{what}: files {sorted(names)}, expected {sorted(others)}")
    for name in sorted(names):
        left, right = (found / name).read_bytes(), (expected / name).read_bytes()
        if name == RECORD:
            _assert_same_data(json.loads(left), json.loads(right), f"{what}: {name}")
        elif left != right:
            raise AssertionError(f"{what}: {name} differs from the local runner's")


def _files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def _assert_same_data(found: dict[str, Any], expected: dict[str, Any], what: str) -> None:
    """The same but for how long it took."""
    for key in (found.keys() | expected.keys()) - {"timing"}:
        if found.get(key) != expected.get(key):
            raise AssertionError(f"{what}: {key} is {found.get(key)!r:.200}, expected {expected.get(key)!r:.200}")
