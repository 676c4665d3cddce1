"""A method that needs all processors for a tensor has them: the engine does one such tensor at a time."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

from agentmerge import merge
from agentmerge.methods.base import MergeMethod, Work, added
from agentmerge.methods.calibrate import Calibrate
from agentmerge.methods.dare import Dare
from agentmerge.testing import Sources, make_agents

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.survey.statistic import Survey
    from agentmerge.tensors import Array, Stack, TensorSpec


class Meter:
    """How many are inside at once."""

    def __init__(self) -> None:
        self.lock, self.inside, self.most = threading.Lock(), 0, 0

    def __enter__(self) -> None:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1


METER = Meter()


class Slow(MergeMethod):
    """The mean, of whole tensors, slowly."""

    name: Literal["slow"] = "slow"
    share: float = 1.0

    def work(self, tensor: TensorSpec, agents: int) -> Work:
        return Work(reach="tensor", share=self.share)

    def merge(self, stack: Stack, survey: Survey) -> Array:
        with METER:
            time.sleep(0.02)
            return added(stack.base, stack.task_vectors().sum(axis=0) / np.float32(len(stack.agents)))


def most_at_once(method: MergeMethod, folder: Path) -> int:
    base = {f"w{i}": np.ones((40, 50), np.float32) for i in range(6)}
    sources: Sources = make_agents(folder / "in", base=base)
    METER.most = 0
    merge(sources.recipe(method, run={"workers": 4}), folder / "out")
    return METER.most


@pytest.mark.parametrize(
    "method",
    [
        Slow(),
        Calibrate(then=Slow()),
        Dare(then=Slow()),
        Dare(density=1, then=Calibrate(then=Slow())),
        Dare(density=0.5, then=Calibrate(then=Slow())),
    ],
    ids=["itself", "calibrated", "dropped", "calibrated in dare", "dropped and calibrated"],
)
def test_in_every_pass_one_tensor_is_merged_at_a_time(method: MergeMethod, tmp_path: Path) -> None:
    assert most_at_once(method, tmp_path) == 1


def test_the_others_are_merged_side_by_side(tmp_path: Path) -> None:
    assert most_at_once(Slow(share=0.0), tmp_path) > 1


def test_what_takes_a_third_of_the_machine_is_merged_three_at_a_time_at_most(tmp_path: Path) -> None:
    assert 1 < most_at_once(Slow(share=1 / 3), tmp_path) <= 3
