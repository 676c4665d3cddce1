"""The second golden set: what mergekit gives for cuts, draws, angles and variances, off the elements that lie at a cut.

Which of several equal magnitudes, or variances, a sort leaves at a cut is not defined; all of them stay here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file

from agentmerge import kernels
from agentmerge.methods import della
from agentmerge.methods.base import Context
from agentmerge.methods.breadcrumbs import ranks
from agentmerge.methods.registry import resolve_method
from agentmerge.tensors import Array, Block, Stack, TensorSpec, as_float32
from agentmerge.testing import read_checkpoint, survey_of

PLACES = [Path(__file__).parents[1] / "golden2", Path(__file__).parents[3] / "shared" / "golden2"]
T3, T2 = ("code", "memory", "tool"), ("memory", "tool")
ULP = 2.0**-23
KEEP = 0.575
"""The probability from which on the golden files of DELLA keep an element, in place of a draw."""
BY_RANK = {"density": 0.5, "epsilon": 0.15}
SUM = {"name": "ties", "density": 1.0, "zero_sign": "plus", "normalize": True}


class Case(NamedTuple):
    """A file, how its numbers come out here, and the largest relative difference of the update."""

    file: str
    method: dict[str, Any]
    tolerance: float
    agents: tuple[str, ...] = T3
    weight: tuple[float, ...] = (1.0, 1.0, 1.0)


CASES = [
    Case("sce/select_topk_1.0_T3", {"name": "sce"}, 3e-7),
    Case("sce/select_topk_0.5_T3", {"name": "sce", "select_topk": 0.5}, 3e-7),
    Case("sce/select_topk_0.1_T3", {"name": "sce", "select_topk": 0.1}, 3e-7),
    Case("sce/select_topk_0.5_T2", {"name": "sce", "select_topk": 0.5}, 3e-7, T2),
    *(
        case
        for name in ("breadcrumbs", "breadcrumbs_ties")
        for case in (
            Case(f"{name}/density_0.9_gamma_0.01_weight_1_T3", {"name": name}, 1e-7),
            Case(f"{name}/density_0.3_gamma_0.05_weight_0.5_T3", {"name": name, "density": 0.3, "gamma": 0.05}, 1e-7,
                 weight=(0.5, 0.5, 0.5)),
        )
    ),
    Case("breadcrumbs_ties/density_0.3_gamma_0.05_normalize_T3",
         {"name": "breadcrumbs_ties", "density": 0.3, "gamma": 0.05, "then": SUM}, 1e-7),
    Case("breadcrumbs/density_0.3_gamma_0.05_rescale_T3",
         {"name": "breadcrumbs", "density": 0.3, "gamma": 0.05, "rescale": True}, 2.1e-6),
    Case("della/della_linear_mask_is_probability_at_least_0.575__density_0.5_epsilon_0.15_T3",
         {"name": "della_linear", "rescale": "norm", **BY_RANK}, 3e-6),
    Case("della/della_linear_mask_is_probability_at_least_0.575__rescale_false_T3",
         {"name": "della_linear", "rescale": "none", **BY_RANK}, 3e-6),
    Case("della/della_mask_is_probability_at_least_0.575__density_0.5_epsilon_0.15_T3",
         {"name": "della", "rescale": "norm", **BY_RANK}, 3e-6),
    *(
        Case(f"model_stock/filter_wise_{rows}_T{len(agents)}",
             {"name": "model_stock", "filter_wise": rows, "floor": 1e-6}, 6e-3, agents)
        for rows in (False, True) for agents in (T3, T2)
    ),
    Case("nearswap/t_0.001_tool_onto_base", {"name": "nearswap", "t": 1e-3}, 3e-5, ("tool",)),
    Case("nearswap/t_0.0001_memory_onto_base", {"name": "nearswap", "t": 1e-4}, 3e-5, ("memory",)),
    Case("slerp/multislerp_weights_equal_T3", {"name": "multislerp"}, 5e-6),
    Case("slerp/multislerp_weights_equal_T2", {"name": "multislerp"}, 5e-6, T2),
    Case("slerp/nuslerp_flatten_weights_1_1_T2", {"name": "slerp"}, 4e-6, T2),
    Case("slerp/nuslerp_flatten_weights_1_1_code_memory", {"name": "slerp"}, 4e-6, ("code", "memory")),
    Case("slerp/nuslerp_flatten_weights_1_3_T2", {"name": "slerp"}, 4e-6, T2, (3.0, 1.0)),
    Case("slerp/nuslerp_last_axis_T2", {"name": "slerp", "per": "row"}, 4e-6, T2),
    Case("slerp/nuslerp_row_wise_T2", {"name": "slerp", "per": "column"}, 4e-6, T2),
]  # fmt: skip


@pytest.fixture(scope="module")
def inputs_by_name(inputs: Path) -> dict[str, dict[str, Array]]:
    return {name: read_checkpoint(inputs / name) for name in ("base", *T3)}


def expected_of(file: str) -> dict[str, Array]:
    found = [place / f"{file}.safetensors" for place in PLACES if (place / f"{file}.safetensors").exists()]
    if not found:
        pytest.skip("no ../shared/golden2 beside this checkout; tests/golden2 holds a copy of a part")
    return dict(load_file(found[0]))


def stack_of(inputs: dict[str, dict[str, Array]], tensor: str, case: Case) -> Stack:
    base = inputs["base"][tensor]
    block = Block(TensorSpec(tensor, "BF16", base.shape), 0, base.size)
    agents = tuple(inputs[name][tensor].reshape(-1) for name in case.agents)
    return Stack(block, base.reshape(-1), agents, case.agents, case.weight[: len(case.agents)])


def at_a_cut(case: Case, tau: Array, columns: int) -> Array:
    """Elements of which the public code keeps some by the order of its sort."""
    size, n = np.abs(tau.astype(np.float64)), tau.shape[1]
    none = np.zeros(n, np.bool_)
    if case.file.startswith("breadcrumbs"):
        cuts = [i - 1 for i in ranks(n, case.method.get("density", 0.9), case.method.get("gamma", 0.01))]
        cut = np.sort(size, axis=1)[:, cuts]
        return ((size[:, :, None] == cut[:, None, :]).any(axis=2) & (size > 0)).any(axis=0)
    if case.file.startswith("della"):
        rows = size.reshape(len(size), -1, columns)
        first = int((della.probabilities(columns, 0.5, 0.15) < KEEP).sum())
        edges = np.sort(rows, axis=2)[:, :, [first - 1, min(first, columns - 1)]]
        torn = edges[..., :1] == edges[..., 1:]
        return (torn & (rows == edges[..., :1]) & (rows > 0)).any(axis=0).reshape(-1)
    if case.method.get("select_topk", 1) < 1:
        spread = tau.astype(np.float64).var(axis=0)
        varying = np.sort(spread[spread > 1e-30])
        cut = varying[-max(int(case.method["select_topk"] * varying.size), 1)]
        return np.abs(spread - cut) < 1e-4 * cut
    return none


def rescaled(case: Case, tau: Array) -> Array:
    """What mergekit's factor of a rescale is by ours: it keeps exactly so many of the elements at a cut."""
    if not case.method.get("rescale") or case.method["name"] != "breadcrumbs":
        return np.ones(len(tau))
    size, n = np.abs(tau.astype(np.float64)), tau.shape[1]
    low, high = ranks(n, case.method["density"], case.method["gamma"])
    ordered = np.sort(size, axis=1)
    theirs = ordered[:, low - 1 : high].sum(axis=1)
    inside = (size >= ordered[:, low - 1 : low]) & (size <= ordered[:, high - 1 : high])
    return np.where(theirs > 0, np.where(inside, size, 0).sum(axis=1) / np.where(theirs > 0, theirs, 1), 1.0)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.file.replace("/", " "))
def test_the_update_is_that_of_the_public_code(
    inputs_by_name: dict[str, dict[str, Array]], case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "choose", lambda *_: None)
    keep = np.uint32(KEEP * 2**32 - 1)
    monkeypatch.setattr(della, "random_bits", lambda key, start, n: np.full(n, keep, np.uint32))
    method = resolve_method(case.method).bind(Context(0, dict.fromkeys(case.agents, 1.0)))
    wanted = expected_of(case.file)
    stacks = {tensor: stack_of(inputs_by_name, tensor, case) for tensor in wanted}
    survey, compared = survey_of(method, stacks.values()), 0
    for tensor, stack in stacks.items():
        tau, base = stack.task_vectors(), as_float32(stack.base).astype(np.float64)
        if case.method.get("select_topk", 1) < 1 and (tau.astype(np.float64) ** 2).mean(axis=1).sum() > 1e-6:
            continue  # which of the elements at the cut stay changes the agents' shares
        theirs = wanted[tensor].reshape(-1).astype(np.float64) - base
        off = ~at_a_cut(case, tau, stack.block.tensor.columns)
        factor = rescaled(case, tau)
        if (factor != 1).any():  # one by agent, so where agents meet nothing can be told
            off &= (tau != 0).sum(axis=0) == 1
            theirs = theirs / np.where(off, ((tau != 0) * factor[:, None]).max(axis=0), 1)
        found = method.merge(stack, survey).astype(np.float64) - base
        apart = np.maximum(np.abs(found - theirs) - ULP * np.abs(base), 0)[off]
        assert np.linalg.norm(apart) <= case.tolerance * np.linalg.norm(theirs[off]), tensor
        compared += int((off & (theirs != 0)).sum())
    assert compared > 100


def test_the_probability_of_della_rises_with_the_magnitude_and_every_row_holds_every_step_once(
    inputs_by_name: dict[str, dict[str, Array]],
) -> None:
    wanted = expected_of("della/keep_probability_density_0.5_epsilon_0.15")
    assert wanted
    for name, found in wanted.items():
        rows = found.reshape(-1, found.shape[-1])
        columns = rows.shape[1]
        steps = della.probabilities(columns, 0.5, 0.15)
        np.testing.assert_allclose(np.sort(rows, axis=1), np.broadcast_to(steps, rows.shape), atol=1e-6, err_msg=name)
    tau = (inputs_by_name["tool"]["model.layers.0.self_attn.k_proj.weight"].astype(np.float32)
           - inputs_by_name["base"]["model.layers.0.self_attn.k_proj.weight"].astype(np.float32))  # fmt: skip
    rank = della.ranks(tau)
    assert (np.sort(rank, axis=1) == np.arange(tau.shape[1])).all()
    assert (np.diff(np.take_along_axis(np.abs(tau), np.argsort(rank, axis=1), axis=1), axis=1) >= 0).all()
