"""The methods of singular vectors give what the public codes give, from the update that is added to the base."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from agentmerge.methods import lanczos
from agentmerge.methods.arrays import Arrays, TorchArrays
from agentmerge.methods.layers import Vectors
from agentmerge.methods.registry import resolve_method
from agentmerge.tensors import Block, Stack, TensorSpec
from agentmerge.testing import read_checkpoint, survey_of

if TYPE_CHECKING:
    from agentmerge.tensors import Array

TESTS = Path(__file__).parents[1]
COPY, SHARED = TESTS / "golden2", TESTS.parent / "../shared/golden2"
T3, T2 = ("code", "tool", "memory"), ("tool", "memory")
ROUNDING = {"resmerge": 8e-6, "iso_c": 1.5e-6, "iso_cts": 2.4e-5, "tsv_m": 3.5e-5, "svc": 2.7e-5}
"""What float32 and float64 runs of the public code differ by, relative to the update."""


def svc(alpha: float, then: Any, **settings: Any) -> dict[str, Any]:
    return {"name": "svc", "alpha": alpha, "then": {"name": then, **settings}}


SUM = {"normalize": False, "scale": 0.3}
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "iso_c/authors_scale1_T2": ({"name": "iso_c"}, T2),
    "iso_c/authors_scale1_T3": ({"name": "iso_c"}, T3),
    "iso_c/fusionbench_exclude_embed_head_T3": ({"name": "iso_c", "excluded": "*embed*,*lm_head*"}, T3),
    "iso_cts/authors_fraction0.8_scale1_T2": ({"name": "iso_cts"}, T2),
    "iso_cts/authors_fraction0.8_scale1_T3": ({"name": "iso_cts"}, T3),
    "iso_cts/fusionbench_fraction0.5_T3": ({"name": "iso_cts", "common_space_fraction": 0.5}, T3),
    "tsv_m/authors_svd_T2": ({"name": "tsv_m"}, T2),
    "tsv_m/authors_svd_T3": ({"name": "tsv_m"}, T3),
    "tsv_m/authors_lossless_T2": ({"name": "tsv_m", "ranks": "all"}, T2),
    "tsv_m/authors_rank_reduction_only_T3": ({"name": "tsv_m", "orthogonal": False}, T3),
    "resmerge/default_T2": ({"name": "resmerge"}, T2),
    "resmerge/default_T3": ({"name": "resmerge"}, T3),
    "resmerge/default_T2_code_tool": ({"name": "resmerge"}, ("code", "tool")),
    "resmerge/default_T1": ({"name": "resmerge"}, ("tool",)),
    "resmerge/rank2_T3": ({"name": "resmerge", "rank_topk": 2}, T3),
    "resmerge/rank8_T3": ({"name": "resmerge", "rank_topk": 8}, T3),
    "resmerge/budget0_T3": ({"name": "resmerge", "head_ratio_budget": 0}, T3),
    "resmerge/budget1_T3": ({"name": "resmerge", "head_ratio_budget": 1}, T3),
    "resmerge/beta_0.3_0.5_T3": ({"name": "resmerge", "beta_min": 0.3, "beta_max": 0.5}, T3),
    "svc/task_arithmetic_0.3_alpha0.1_T2": (svc(0.1, "task_arithmetic", scale=0.3), T2),
    "svc/task_arithmetic_0.3_alpha0.1_T3": (svc(0.1, "task_arithmetic", scale=0.3), T3),
    "svc/task_arithmetic_0.3_alpha1.0_T3": (svc(1, "task_arithmetic", scale=0.3), T3),
    "svc/task_arithmetic_1.0_alpha1.0_T3": (svc(1, "task_arithmetic", scale=1), T3),
    "svc/ties_mean_20pct_1.0_alpha0.5_T3": (svc(0.5, "ties"), T3),
    "svc/ties_sum_20pct_0.3_alpha0.1_T2": (svc(0.1, "ties", **SUM), T2),
    "svc/ties_sum_20pct_0.3_alpha0.1_T3": (svc(0.1, "ties", **SUM), T3),
    "svc/tsv_m_alpha1.0_T3": (svc(1, "tsv_m"), T3),
}
"""File of the set: our method, and whose agents."""
BEFORE = {
    "svc/ties_mean_20pct_1.0_alpha0.5_T3_before": ({"name": "ties"}, T3),
    "svc/ties_sum_20pct_0.3_alpha0.1_T3_before": ({"name": "ties", **SUM}, T3),
}
"""What svc was put around."""


@pytest.fixture(scope="module")
def checkpoints() -> dict[str, dict[str, Array]]:
    return {name: read_checkpoint(TESTS / "golden" / name) for name in ("base", *T3)}


def expected(name: str) -> dict[str, Array]:
    """The whole set beside this checkout, or the part of it that is copied."""
    for root in (SHARED, COPY):
        if (path := root / f"{name}.safetensors").exists():
            return load_file(path)
    pytest.skip("no ../shared/golden2 beside this checkout; tests/golden2 holds one file of each method")


def stack_of(checkpoints: dict[str, dict[str, Array]], tensor: str, agents: tuple[str, ...]) -> Stack:
    base, names = checkpoints["base"][tensor], tuple(sorted(agents))
    rows = tuple(checkpoints[name][tensor].reshape(-1) for name in names)
    return Stack(Block(TensorSpec(tensor, "BF16", base.shape), 0, base.size), base.reshape(-1), rows, names)


def apart(found: Array, wanted: Array) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def worst(
    checkpoints: dict[str, dict[str, Array]], name: str, settings: dict[str, Any], agents: tuple[str, ...]
) -> float:
    method, base = resolve_method(settings), checkpoints["base"]
    survey = survey_of(method, [stack_of(checkpoints, tensor, agents) for tensor in base])
    off = []
    for tensor, wanted in expected(name).items():
        wide = base[tensor].astype(np.float64).reshape(-1)
        found = method.merge(stack_of(checkpoints, tensor, agents), survey)
        off.append(apart(found - wide, wanted.astype(np.float64).reshape(-1) - wide))
    return max(off)


@pytest.mark.parametrize("name", CASES)
def test_the_public_codes_numbers(checkpoints: Any, name: str) -> None:
    settings, agents = CASES[name]
    assert worst(checkpoints, name, settings, agents) < 3 * ROUNDING[settings["name"]]


@pytest.mark.parametrize("name", BEFORE)
def test_what_svc_is_put_around(checkpoints: Any, name: str) -> None:
    assert worst(checkpoints, name, *BEFORE[name]) < 3e-6


@pytest.mark.parametrize("always", [False, True], ids=["eigenvectors", "lanczos"])
def test_resmerge_is_within_1e_6_of_the_public_code_in_float64(
    checkpoints: Any, always: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if always:
        monkeypatch.setattr(lanczos, "ALL", 1)
    for tensor, wanted in expected("resmerge/default_T3_float64").items():
        vectors = Vectors(stack_of(checkpoints, tensor, T3), Arrays(), turned=False)
        found = resolve_method("resmerge").update(vectors, Arrays())  # type: ignore[attr-defined]
        assert apart(found, wanted - checkpoints["base"][tensor].astype(np.float64)) < 1e-6, tensor


KEPT = {
    "resmerge": ({"name": "resmerge"}, "`resmerge` 1.09, 0.25, 0.27"),
    "tsv_m": ({"name": "tsv_m"}, "`tsv_m` 0.64, 0.52, 0.53"),
    "iso_c": ({"name": "iso_c"}, "`iso_c` 0.86, 0.86, 0.86"),
    "iso_cts": ({"name": "iso_cts"}, "`iso_cts` 1.11, 0.80, 0.80"),
    "svc": (svc(0.1, "task_arithmetic", scale=0.3), "`svc` around Task Arithmetic at scale 0.3 0.70, 0.75, 0.75"),
}


@pytest.mark.parametrize("name", KEPT)
def test_the_document_says_what_is_kept_of_a_unique_change(checkpoints: Any, name: str) -> None:
    """<merged - base, tau> / <tau, tau> over what one agent alone changed, in the matrices of the first layer."""
    settings, words = KEPT[name]
    assert words in " ".join((TESTS.parent / "docs" / "methods.md").read_text(encoding="utf-8").split())
    kept, whole = np.zeros(3), np.zeros(3)
    for tensor, base in checkpoints["base"].items():
        if not tensor.startswith("model.layers.0.") or base.ndim != 2:
            continue
        stack, method = stack_of(checkpoints, tensor, T3), resolve_method(settings)
        tau = stack.task_vectors().astype(np.float64)
        update = method.merge(stack, survey_of(method, [stack])) - base.astype(np.float64).reshape(-1)
        alone = (tau != 0).sum(axis=0) == 1
        kept += (alone * tau * update).sum(axis=1)
        whole += (alone * tau * tau).sum(axis=1)
    np.testing.assert_allclose(kept / whole, [float(text) for text in words.replace(",", "").split()[-3:]], atol=0.0051)


def by_decomposition(name: str, taus: list[Array]) -> Array:
    """iso_c, iso_cts and tsv_m from singular value decompositions, float64."""
    agents, total = len(taus), np.sum(taus, axis=0)
    side = min(total.shape)

    def factor(matrix: Array) -> Array:
        left, _, right = np.linalg.svd(matrix, full_matrices=False)
        return left @ right

    def first(matrix: Array, count: int) -> tuple[Array, Array, Array]:
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
        return left[:, :count], values[:count], right[:count].T

    if name == "iso_c":
        return np.linalg.svd(total)[1].mean() * factor(total)
    if name == "tsv_m":
        parts = [first(tau, side // agents) for tau in taus]
    else:
        own = round((side - int(side * 0.8)) / agents)
        common = first(total, side - agents * own)
        parts = [*(first(tau - common[0] @ (common[0].T @ tau), own) for tau in taus), common]
    left, right = (factor(np.concatenate([part[i] for part in parts], axis=1)) for i in (0, 2))
    values = np.concatenate([part[1] for part in parts])
    return left * (values if name == "tsv_m" else values.sum() / side) @ right.T


@pytest.mark.parametrize("agents", [T2, T3], ids=["T2", "T3"])
@pytest.mark.parametrize("name", ["iso_c", "iso_cts", "tsv_m"])
def test_without_a_decomposition_it_is_the_same_to_1e_10(checkpoints: Any, name: str, agents: tuple[str, ...]) -> None:
    for kind in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj", "mlp.down_proj"):
        vectors = Vectors(stack_of(checkpoints, f"model.layers.0.{kind}.weight", agents), Arrays(), turned=False)
        wanted = by_decomposition(name, [tau.astype(np.float64) for tau in vectors])
        found = resolve_method(name).update(vectors, Arrays())  # type: ignore[attr-defined]
        assert apart(found, wanted) < 1e-10, kind


def test_the_copied_files_are_the_originals() -> None:
    if not SHARED.is_dir():
        pytest.skip("no ../shared/golden2 beside this checkout")
    copies = sorted(COPY.rglob("*.safetensors"))
    assert {path.parent.name for path in copies} >= set(ROUNDING)
    for path in copies:
        assert path.read_bytes() == (SHARED / path.relative_to(COPY)).read_bytes(), path


@pytest.mark.slow
@pytest.mark.parametrize("newton", [False, True], ids=["eigenvectors", "newton_schulz"])
@pytest.mark.parametrize("name", [*ROUNDING])
def test_torch_gives_what_numpy_gives(
    checkpoints: Any, name: str, newton: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from agentmerge.methods import layers, spectra

    there = TorchArrays("cpu")
    if newton:
        monkeypatch.setattr(spectra, "polar", spectra.newton_schulz)
    for kind in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj", "mlp.down_proj"):
        stack = stack_of(checkpoints, f"model.layers.0.{kind}.weight", T3)
        results = []
        for arrays in (there, Arrays()):
            monkeypatch.setattr(layers, "cuda", lambda arrays=arrays: arrays)
            method = resolve_method(name)
            results.append(method.merge(stack, survey_of(method, [stack])).astype(np.float64))
        base = stack.base.astype(np.float64)
        assert apart(results[0] - base, results[1] - base) < 2e-6, kind
