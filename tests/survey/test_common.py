"""NaN and inf with the same bits in every source are told from those that one source alone has."""

from __future__ import annotations

import numpy as np
import pytest

from agentmerge.survey.common import Common, same_non_finite
from agentmerge.survey.integrity import Integrity
from agentmerge.survey.observe import observe
from agentmerge.survey.overlap import Overlap
from agentmerge.tensors import DTYPES, Block, Stack, TensorSpec
from agentmerge.testing import assert_statistic_contract, random_stack

INF, NAN = np.inf, np.nan


def stack(*rows: list[float], dtypes: tuple[str, ...] = ("F32",) * 3) -> Stack:
    arrays = [np.array(row, np.float32).astype(DTYPES[dtype]) for row, dtype in zip(rows, dtypes, strict=False)]
    base, *agents = arrays
    return Stack(Block(TensorSpec("w", dtypes[0], base.shape), 0, base.size), base, tuple(agents), ("a", "b"))


@pytest.mark.parametrize("dtypes", [("F32", "F32", "F32"), ("BF16", "BF16", "BF16"), ("F32", "BF16", "F16")])
def test_only_what_all_have_alike_is_common(dtypes: tuple[str, ...]) -> None:
    found = stack(
        [-INF, INF, NAN, NAN, 1, INF, 0],
        [-INF, INF, NAN, 2, 1, -INF, INF],
        [-INF, 3, NAN, NAN, 1, INF, INF],
        dtypes=dtypes,
    )
    assert same_non_finite(found).tolist() == [True, False, True, False, False, False, False]
    assert Common().observe(found) == (1, 1)


def test_an_agent_that_is_the_base_itself_is_no_witness() -> None:
    base = np.array([INF, NAN], np.float32)
    alone = Stack(Block(TensorSpec("w", "F32", (2,)), 0, 2), base, (base, base), ("a", "b"))
    assert Common().observe(alone) == (0, 0)
    assert Common().observe(Stack(alone.block, base, (base, base.copy()), ("a", "b"))) == (1, 1)


@pytest.mark.parametrize("seed", range(30))
def test_every_way_to_ask_gives_the_same(seed: int) -> None:
    plain = random_stack(seed, elements=129, dtypes=("BF16",), non_finite=True)
    mixed = np.where(np.arange(129) % 3 == 0, plain.base, plain.agents[0])
    found = Stack(plain.block, plain.base, (mixed, plain.base.copy()), ("a", "b"))
    expected = Common().observe(found)
    for asked in ([Common()], [Integrity(), Common()], [Overlap(), Integrity(), Common()]):
        assert observe(asked, found)[Common()] == expected


def test_it_is_a_statistic() -> None:
    assert_statistic_contract(Common())
