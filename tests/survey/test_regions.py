"""What a stored merge keeps of each agent by region."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentmerge import kernels
from agentmerge.survey.retention import RegionRetention, region_retentions
from agentmerge.tensors import Cast
from agentmerge.testing import random_stack


@given(
    seed=st.integers(0, 2**32),
    elements=st.sampled_from([0, 1, 65, 2049, 5000]),
    agents=st.integers(1, 5),
    dtype=st.sampled_from(["BF16", "F16", "F32"]),
)
@settings(max_examples=30, deadline=None)
def test_the_kernel_equals_the_definition(seed: int, elements: int, agents: int, dtype: str) -> None:
    stack, asked = random_stack(seed, elements=elements, agents=agents, dtypes=(dtype,)), RegionRetention()
    stored = stack.agents[-1]
    with np.errstate(all="ignore"):
        backend = kernels.choose(stack, dtype)
        assert backend is not None
        assert asked.kernel(stack, stored, backend) == asked.observe(stack, stored, stored, Cast(dtype))


def test_an_agent_itself_is_kept_whole_and_the_base_keeps_nothing() -> None:
    stack, asked = random_stack(4, agents=2), RegionRetention()
    own = region_retentions(asked.observe(stack, stack.agents[0], stack.agents[0], Cast("BF16")))[0]
    assert own == pytest.approx((1.0, 1.0, 1.0))
    none = region_retentions(asked.observe(stack, stack.base, stack.base, Cast("BF16")))
    assert none == [(0.0, 0.0, 0.0)] * 2


def test_a_region_without_elements_has_no_retention() -> None:
    stack, asked = random_stack(4, agents=1), RegionRetention()
    assert region_retentions(asked.observe(stack, stack.base, stack.base, Cast("BF16")))[0][1] is None


def test_sums_add_up_and_survive_json() -> None:
    stack, asked = random_stack(4), RegionRetention()
    sums = asked.observe(stack, stack.base, stack.agents[1], Cast("BF16"))
    answers = asked.answers
    assert answers.decode(answers.encode(answers.combine(sums, sums))) == tuple(2 * total for total in sums)
