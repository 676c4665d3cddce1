"""A full probe of the golden set against a plain numpy computation on whole arrays, and against overlap.json."""

from __future__ import annotations

import json
from itertools import combinations
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from agentmerge import merge, probe
from agentmerge.analysis.measured import MOST, sample_of
from agentmerge.survey.modules import module_of
from agentmerge.testing import read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.record import ProbeRecord
    from agentmerge.tensors import Array

AGENTS = ("code", "memory", "tool")


class Plain:
    """The golden set as one long array per source."""

    def __init__(self, root: Path) -> None:
        base = read_checkpoint(root / "base")
        self.names = sorted(base)
        self.raw = self._joined(base)
        self.base = self.raw.astype(np.float32)
        agents = [read_checkpoint(root / name) for name in AGENTS]
        self.stored = [self._joined(agent) for agent in agents]
        self.values = [raw.astype(np.float32) for raw in self.stored]
        self.tau = [value - self.base for value in self.values]
        self.changed = [np.abs(tau) > np.float32(1e-5) for tau in self.tau]
        self.count = np.sum(self.changed, axis=0)
        self.layer = np.concatenate([np.full(base[name].size, module_of(name).layer) for name in self.names])
        self.kind = np.concatenate([np.full(base[name].size, module_of(name).kind) for name in self.names])

    def _joined(self, tensors: dict[str, Array]) -> Array:
        return np.concatenate([tensors[name].ravel() for name in self.names])


@pytest.fixture(scope="session")
def plain(golden: Path) -> Plain:
    return Plain(golden)


def recipe(root: Path, method: Any = "ram_plus") -> dict[str, Any]:
    return {"base": str(root / "base"), "agents": {name: str(root / name) for name in AGENTS}, "method": method}


@pytest.fixture(scope="session")
def seen(golden: Path) -> ProbeRecord:
    return probe(recipe(golden), full=True)


def test_the_survey_is_that_of_overlap_json(golden: Path, seen: ProbeRecord) -> None:
    expected = json.loads((golden / "expected/overlap.json").read_text())
    assert seen.findings is not None
    assert seen.findings.elements == seen.findings.sampled_elements == expected["elements"]
    for name, agent in expected["agents"].items():
        rows = [row for row in seen.findings.modules if row.agent == name]
        assert sum(row.changed for row in rows) == agent["changed"]
        assert sum(row.unique for row in rows) == agent["unique"]
        assert sum(row.shared for row in rows) == agent["shared"]
        assert seen.survey.agents[name].density == agent["density"]
        steps = [row for row in seen.findings.steps if row.agent == name]
        assert sum(row.elements for row in steps) == agent["changed"]


def test_modules_against_numpy(plain: Plain, seen: ProbeRecord) -> None:
    assert seen.findings is not None
    for row in seen.findings.modules:
        t = AGENTS.index(row.agent)
        here = (plain.layer == row.layer) & (plain.kind == row.kind)
        changed = plain.changed[t] & here
        assert (row.elements, row.changed) == (here.sum(), changed.sum())
        assert (row.unique, row.shared) == ((changed & (plain.count == 1)).sum(), (changed & (plain.count > 1)).sum())
        differs = plain.values[t].view(np.uint32) != plain.base.view(np.uint32)
        assert row.below_threshold == (differs & ~plain.changed[t] & here).sum()


def test_pairs_against_numpy(plain: Plain, seen: ProbeRecord) -> None:
    assert seen.findings is not None
    rows = {(r.left, r.right): r for r in seen.findings.pairs if r.scope == "model"}
    for (s, a), (t, b) in combinations(enumerate(AGENTS), 2):
        both, row = plain.changed[s] & plain.changed[t], rows[a, b]
        left, right = plain.tau[s][both].astype(np.float64), plain.tau[t][both].astype(np.float64)
        assert row.overlap == both.sum()
        assert row.expected == pytest.approx(plain.changed[s].mean() * plain.changed[t].mean() * both.size)
        assert row.agree == pytest.approx(np.mean(np.sign(left) == np.sign(right)))
        assert row.equal == pytest.approx(np.mean(left == right))
        assert row.cosine == pytest.approx(left @ right / np.sqrt((left @ left) * (right @ right)))


def test_bins_against_numpy(plain: Plain, seen: ProbeRecord) -> None:
    assert seen.findings is not None
    with np.errstate(divide="ignore"):
        exponent = np.where(plain.base == 0, -127, np.floor(np.log2(np.abs(plain.base.astype(np.float64)))))
    for row in seen.findings.bins:
        here = exponent == row.exponent
        assert row.elements == here.sum()
        assert row.changed == (here & plain.changed[AGENTS.index(row.agent)]).sum()
    for pair in seen.findings.bin_pairs:
        s, t = AGENTS.index(pair.left), AGENTS.index(pair.right)
        assert pair.overlap == ((exponent == pair.exponent) & plain.changed[s] & plain.changed[t]).sum()


def test_steps_and_magnitudes_against_numpy(plain: Plain, seen: ProbeRecord) -> None:
    assert seen.findings is not None
    grid = np.sort(np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32))
    grid = np.unique(grid[np.isfinite(grid)])
    place = np.searchsorted(grid, plain.base)
    for t, name in enumerate(AGENTS):
        far = np.abs(np.searchsorted(grid, plain.values[t]) - place)[plain.changed[t]]
        edges = np.histogram(far, [1, 2, 3, 5, 9, 1 << 20])[0].tolist()
        assert [row.elements for row in seen.findings.steps if row.agent == name] == edges
        sizes = np.sort(np.abs(plain.tau[t][plain.changed[t]]))
        for q, value in seen.findings.totals[t].magnitude.items():
            exact = sizes[int(np.ceil(float(q) * sizes.size)) - 1]
            assert value is not None
            assert value <= exact <= value * 17 / 16


def test_norms_conflicts_and_energies_against_numpy(plain: Plain, seen: ProbeRecord) -> None:
    assert seen.findings is not None
    tau = np.where(plain.changed, plain.tau, 0).astype(np.float64)
    mean = tau.sum(axis=0) / np.maximum(plain.count, 1)
    mixed = (tau > 0).any(axis=0) & (tau < 0).any(axis=0)
    for t, row in enumerate(seen.findings.totals):
        unique, shared = tau[t] * (plain.count == 1), plain.changed[t] & (plain.count > 1)
        assert row.norm == pytest.approx(np.sqrt(tau[t] @ tau[t]))
        assert row.unique_norm_share == pytest.approx(unique @ unique / (tau[t] @ tau[t]))
        assert row.conflict == pytest.approx(mixed[shared].mean())
        assert row.cancelled == pytest.approx((np.abs(mean[shared]) <= np.float32(1e-5)).mean(), abs=1e-3)
        kept = next(r.retention for r in seen.findings.dilution if r.method == "ram" and r.agent == row.agent)
        ram = np.where(plain.count == 1, tau.sum(axis=0), mean)
        assert kept == pytest.approx(ram @ tau[t] / (tau[t] @ tau[t]), rel=1e-6)


@pytest.mark.usefixtures("unsynced")
@pytest.mark.parametrize(("method", "row"), [("task_arithmetic", "task_arithmetic"), ("ram", "ram")])
def test_what_rounding_would_take_is_what_a_merge_reports(
    golden: Path, seen: ProbeRecord, tmp_path: Path, method: str, row: str
) -> None:
    assert seen.findings is not None
    for dtype, code in (("bfloat16", "BF16"), ("float16", "F16"), ("float32", "F32")):
        record = merge({**recipe(golden, method), "output": {"dtype": dtype}}, tmp_path / dtype)
        for found in seen.findings.lost:
            if (found.method, found.dtype) == (row, code):
                assert found.changed_lost == record.rounding[found.agent].changed_lost


@pytest.mark.usefixtures("unsynced")
def test_the_survival_of_a_rescale_is_what_a_merge_reports(golden: Path, seen: ProbeRecord, tmp_path: Path) -> None:
    assert seen.findings is not None
    record = merge(recipe(golden), tmp_path / "out", full=True)
    for row in seen.findings.rescale:
        if (row.dtype, row.rescale) == ("BF16", 0.1):
            survived = record.rounding[row.agent].rescale_survived
            assert row.scale == record.survey.agents[row.agent].scale
            assert row.at_least is not None
            assert row.at_most is not None
            assert survived is not None
            assert row.at_least <= survived <= row.at_most
            if row.scale == 1.2:
                assert row.at_least == survived
    assert record.findings == seen.findings


@pytest.mark.usefixtures("unsynced")
def test_the_expected_retention_is_what_a_merge_in_float32_keeps(
    golden: Path, seen: ProbeRecord, tmp_path: Path
) -> None:
    assert seen.findings is not None
    for method in ("ram_plus", "task_arithmetic"):
        record = merge({**recipe(golden, method), "output": {"dtype": "float32"}}, tmp_path / method, full=True)
        for row in seen.findings.dilution:
            if row.method == method:
                assert record.retention is not None
                assert record.retention[row.agent].changed == pytest.approx(row.retention, rel=2e-3)


def test_the_same_findings_for_any_blocks_and_workers(golden: Path, seen: ProbeRecord) -> None:
    run = {"workers": 3, "block_size": "16KB"}
    assert probe({**recipe(golden), "run": run}, full=True).findings == seen.findings


def test_a_plain_probe_has_no_findings(golden: Path) -> None:
    assert probe(recipe(golden)).findings is None


@pytest.mark.parametrize("elements", [1, MOST, MOST + 1, 10**9, 671 * 10**9])
def test_a_sample_is_as_large_as_allowed(elements: int) -> None:
    sample = sample_of(elements)
    assert elements / sample <= MOST
    assert sample == 1 or elements / sample > MOST / 2
