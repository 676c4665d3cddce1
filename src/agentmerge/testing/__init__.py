"""For tests of plug-ins: tiny checkpoints, hostile stacks, and a contract per plug-in point. Needs no pytest.

    assert_contract(MyMethod())                  a method
    assert_kernel_contract(MyMethod())           its kernel
    assert_statistic_contract(MyStatistic())     a question that it asks
    assert_source_contract(source)               a source of weights
    assert_runner_contract(MyRunner())           who does the work

Each raises AssertionError with what was found and expected. `docs/adding-a-method.md`, `docs/adding-a-source.md` and
`docs/adding-a-runner.md` show them at work.
"""

from agentmerge.files.save import spec_of
from agentmerge.testing.checkpoints import (
    CONFIG,
    SHAPES,
    Sources,
    assert_same_tensors,
    make_agents,
    random_base,
    read_checkpoint,
    write_checkpoint,
)
from agentmerge.testing.kernels import assert_kernel_contract, assert_kernel_equals_definition
from agentmerge.testing.methods import CONTRACT_DTYPES, assert_base_bits, assert_contract, assert_pure
from agentmerge.testing.runners import assert_runner_contract
from agentmerge.testing.sources import assert_source_contract
from agentmerge.testing.stacks import (
    MOST_ROUNDS,
    assert_same_bits,
    hostile_stacks,
    random_gram,
    random_importance,
    random_stack,
    survey_of,
)
from agentmerge.testing.statistics import assert_statistic_contract

__all__ = [
    "CONFIG",
    "CONTRACT_DTYPES",
    "MOST_ROUNDS",
    "SHAPES",
    "Sources",
    "assert_base_bits",
    "assert_contract",
    "assert_kernel_contract",
    "assert_kernel_equals_definition",
    "assert_pure",
    "assert_runner_contract",
    "assert_same_bits",
    "assert_same_tensors",
    "assert_source_contract",
    "assert_statistic_contract",
    "hostile_stacks",
    "make_agents",
    "random_base",
    "random_gram",
    "random_importance",
    "random_stack",
    "read_checkpoint",
    "spec_of",
    "survey_of",
    "write_checkpoint",
]
