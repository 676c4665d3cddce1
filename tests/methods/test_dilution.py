"""Signal dilution in numbers: what each method makes of an element that only one agent changed.

docs/methods.md states it in a table, with the passes that each method takes; here the table is checked on the golden
set, agents weighted unequally, in float32.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from agentmerge import merge, probe
from agentmerge.methods.breadcrumbs import ranks
from agentmerge.methods.dare import Dare
from agentmerge.methods.ram import Ram
from agentmerge.methods.registry import known_methods, resolve_method
from agentmerge.randomness import random_bits, stream_key
from agentmerge.survey.full.question import Energy
from agentmerge.survey.overlap import Overlap, OverlapCounts
from agentmerge.testing import read_checkpoint

if TYPE_CHECKING:
    from agentmerge.record import MergeRecord
    from agentmerge.tensors import Array

DOCUMENT = Path(__file__).parents[2] / "docs" / "methods.md"
AGENTS = ("code", "memory", "tool")
WEIGHTS = {"code": 0.5, "memory": 2.0, "tool": 1.0}
SEED, DENSITY = 3, 0.4


class Unique(NamedTuple):
    """The elements that agent `name` alone differs from the base in, of the whole golden set."""

    name: str
    place: Array
    """bool [elements], tensors in the order of their names."""
    tau: Array
    """float64, of these elements."""


class Merged(NamedTuple):
    """A merge of the golden set."""

    root: Path
    record: MergeRecord

    def importance(self, whole: Any) -> Array:
        """float64 [agents, elements]."""
        return np.array([whole(self.root / "importance" / f"{name}.safetensors") for name in AGENTS], np.float64)

    def scale(self, name: str) -> float:
        """Lambda, as the record tells it."""
        return self.record.survey.agents[name].scale or 0.0

    def redundant(self, name: str) -> float:
        """An agent's coefficient in what `disentangle` takes away."""
        return float(self.record.learned["disentangled"]["coefficients"][name])

    def by_tensor(self, made: Any) -> Array:
        """What `made` gives of each tensor's task vectors, float32 [agents, rows, columns] by AGENTS: [elements]."""
        base, agents = read_checkpoint(self.root / "base"), [read_checkpoint(self.root / name) for name in AGENTS]
        found = []
        for tensor, array in sorted(base.items()):
            tau = np.stack([a[tensor].astype(np.float32) - array.astype(np.float32) for a in agents])
            found.append(np.broadcast_to(made(tensor, tau.reshape(len(AGENTS), -1, array.shape[-1])), array.size))
        return np.concatenate(found)

    def drawn(self, name: str) -> Array:
        """What DARE keeps of an agent, bool [elements]."""
        shapes = {tensor: array.size for tensor, array in sorted(read_checkpoint(self.root / "base").items())}
        bits = [random_bits(stream_key(SEED, "dare", name, tensor), 0, size) for tensor, size in shapes.items()]
        return np.concatenate(bits) < DENSITY * 2.0**32


def fisher_share(m: Merged, u: Unique, w: dict[str, float], whole: Any) -> Array:
    factors = np.array([[w[name]] for name in AGENTS]) * (m.importance(whole) + 1e-6)
    return (factors[AGENTS.index(u.name)] / factors.sum(axis=0))[u.place]


def uncut(m: Merged, u: Unique, gamma: float) -> Array:
    """Whether Breadcrumbs leaves an element, tensor by tensor."""

    def kept(tensor: str, tau: Array) -> Array:
        size = np.abs(tau[AGENTS.index(u.name)].reshape(-1))
        low, high = ranks(size.size, 0.9, gamma)
        ordered = np.sort(size)
        return (size >= ordered[low - 1]) & (size <= ordered[high - 1]) if low else np.zeros(size.size, np.bool_)

    return m.by_tensor(kept)[u.place]


def by_rank(m: Merged, u: Unique) -> Array:
    """1 / p where DELLA keeps an element, else 0."""

    def factor(tensor: str, tau: Array) -> Array:
        rows = tau[AGENTS.index(u.name)]
        order = np.argsort(np.abs(rows), axis=1, kind="stable")
        rank = np.argsort(order, axis=1)
        p = 0.35 + 0.3 * rank / (rows.shape[1] - 1)
        bits = random_bits(stream_key(SEED, "della", u.name, tensor), 0, rows.size)
        return np.where(bits < p.reshape(-1) * 2.0**32, 1 / p.reshape(-1), 0)

    return m.by_tensor(factor)[u.place]


def direction(m: Merged, u: Unique, w: dict[str, float]) -> Array:
    """The coefficient of an agent in the mean direction, made as long as the mean."""

    def coefficient(tensor: str, tau: Array) -> float:
        rows, t = tau.reshape(len(AGENTS), -1).astype(np.float64), AGENTS.index(u.name)
        share = np.array([w[name] for name in AGENTS]) / sum(w.values())
        norm = np.linalg.norm(rows, axis=1)
        mean = share / np.where(norm > 0, norm, 1) @ rows
        return share[t] * (share @ norm) / (norm[t] * np.linalg.norm(mean)) if norm[t] else 0.0

    return m.by_tensor(coefficient)[u.place]


def stock(m: Merged, u: Unique) -> Array:
    """Model Stock's r."""

    def ratio(tensor: str, tau: Array) -> float:
        rows = tau.reshape(len(AGENTS), -1).astype(np.float64)
        norm = np.linalg.norm(rows, axis=1)
        unit = rows / np.where(norm > 0, norm, 1)[:, None]
        cosine = (unit @ unit.T)[np.triu_indices(len(AGENTS), 1)].mean()
        return len(AGENTS) * cosine / (1 + (len(AGENTS) - 1) * cosine)

    return m.by_tensor(ratio)[u.place]


def not_linear(m: Merged, u: Unique) -> Array:
    """1 for the elements of tensors that are no linear layers, NaN for the others."""
    sizes = {tensor: array.size for tensor, array in sorted(read_checkpoint(m.root / "base").items())}
    parts = [np.full(n, np.nan if tensor.endswith("proj.weight") else 1.0) for tensor, n in sizes.items()]
    return np.concatenate(parts)[u.place]


NOT_MATRICES = "*embed*,*lm_head*"


def not_in_layers(m: Merged, u: Unique, share: float) -> Array:
    """The share for the elements of embedding, head and one-dimensional tensors, NaN for the others."""
    base = sorted(read_checkpoint(m.root / "base").items())
    beside = [array.ndim == 1 or "embed" in name or "lm_head" in name for name, array in base]
    parts = [np.full(array.size, share if known else np.nan) for known, (_, array) in zip(beside, base, strict=True)]
    return np.concatenate(parts)[u.place]


def averaged_beside(m: Merged, u: Unique, w: dict[str, float], whole: Any) -> Array:
    return not_in_layers(m, u, w[u.name] / len(AGENTS))


ROWS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "ram": ("w[t]", {}, lambda m, u, w, whole: w[u.name]),
    "ram_plus": ("w[t] * lambda[t]", {}, lambda m, u, w, whole: w[u.name] * m.scale(u.name)),
    "ram_plus_soft": ("w[t] * lambda[t]", {}, lambda m, u, w, whole: w[u.name] * m.scale(u.name)),
    "ram_plus_auto": ("w[t] * lambda[t]", {}, lambda m, u, w, whole: w[u.name] * m.scale(u.name)),
    "task_arithmetic": ("w[t] * scale; 1 / N as it is", {}, lambda m, u, w, whole: w[u.name] / len(AGENTS)),
    "linear": ("w[t] / sum of w; 1 / N as it is", {}, lambda m, u, w, whole: w[u.name] / sum(w.values())),
    "ties": (
        "scale where kept, else 0",
        {"scale": 0.9},
        lambda m, u, w, whole: 0.9 * (np.abs(u.tau) >= m.record.learned["trim"][u.name]["smallest_kept"]),
    ),
    "dare": (
        "1 / density times that of `then` where kept, else 0",
        {"density": DENSITY, "then": {"name": "ram_plus"}},
        lambda m, u, w, whole: w[u.name] * m.scale(u.name) / DENSITY * m.drawn(u.name)[u.place],
    ),
    "breadcrumbs": (
        "w[t] where kept, else 0",
        {"gamma": 0.03},
        lambda m, u, w, whole: w[u.name] * uncut(m, u, 0.03),
    ),
    "breadcrumbs_ties": ("w[t] where kept, else 0", {}, lambda m, u, w, whole: w[u.name] * uncut(m, u, 0.01)),
    "della": ("1 / p where kept, else 0", {}, lambda m, u, w, whole: by_rank(m, u)),
    "della_linear": ("w[t] / p where kept, else 0", {}, lambda m, u, w, whole: w[u.name] * by_rank(m, u)),
    "disentangle": (
        "(w[t] - a[t] * sum of w) / N around Task Arithmetic",
        {},
        lambda m, u, w, whole: (w[u.name] - m.redundant(u.name) * sum(w.values())) / len(AGENTS),
    ),
    "sce": ("scale where kept, else 0", {"scale": 0.9}, lambda m, u, w, whole: 0.9),
    "multislerp": (
        "w[t] / sum of w * mean norm / (norm of tau[t] * norm of the mean direction) by tensor",
        {},
        lambda m, u, w, whole: direction(m, u, w),
    ),
    "model_stock": (
        "w[t] * r / N by tensor; about 0",
        {},
        lambda m, u, w, whole: w[u.name] * stock(m, u) / len(AGENTS),
    ),
    "fisher": ("scale * f[t] / sum of f", {"scale": 0.8}, lambda *a: 0.8 * fisher_share(*a)),
    "regmean": (
        "none in a linear layer; else w[t] / N",
        {},
        lambda m, u, w, whole: w[u.name] / len(AGENTS) * not_linear(m, u),
    ),
    "esm": (
        "none in a matrix; else scale * w[t] / N",
        {"scale": 0.7, "layer_power": 0, "matrices": ""},
        lambda m, u, w, whole: not_in_layers(m, u, 0.7 * w[u.name] / len(AGENTS)),
    ),
    "esm_vit": (
        "none in a matrix; else w[t] / N",
        {"layer_power": 0, "matrices": ""},
        averaged_beside,
    ),
    "wudi": (
        "none in a linear layer; else w[t] / N",
        {"solver": "exact"},
        lambda m, u, w, whole: w[u.name] / len(AGENTS) * not_linear(m, u),
    ),
    "wudi_auto": (
        "none in a linear layer; else s * w[t] / N",
        {},
        lambda m, u, w, whole: w[u.name] / len(AGENTS) * m.record.learned["calibration_scale"] * not_linear(m, u),
    ),
    "resmerge": ("none in a matrix; else w[t] / N", {}, averaged_beside),
    "tsv_m": ("none in a matrix; else w[t] / N", {"excluded": NOT_MATRICES}, averaged_beside),
    "iso_c": ("none in a matrix; else w[t] / N", {"excluded": NOT_MATRICES}, averaged_beside),
    "iso_cts": ("none in a matrix; else w[t] / N", {"excluded": NOT_MATRICES}, averaged_beside),
    "svc": (
        "none in a matrix; else that of `then`",
        {"linear": "*.layers.*", "then": {"name": "task_arithmetic", "scale": 0.3}},
        lambda m, u, w, whole: not_in_layers(m, u, 0.3 * w[u.name]),
    ),
    "region": (
        "factor for its agent, 0 for the others",
        {"agent": "tool", "factor": 1 / 3},
        lambda m, u, w, whole: (u.name == "tool") / 3,
    ),
    "calibrate": (
        "s times that of `then`",
        {"then": {"name": "ram"}},
        lambda m, u, w, whole: w[u.name] * m.record.learned["calibration_scale"],
    ),
}
"""Name to: what the document says, the settings to try, and the multiplier of an agent's unique elements."""

FEW = {
    "slerp": "sin(t th) / sin th by tensor; 0.71 at t 1/2 and a right angle",
    "nearswap": "w * min(1, t by its size)",
}
"""Those that take no three agents, and what the document says of them."""

BEYOND: dict[str, tuple[dict[str, Any], Any]] = {
    "task_arithmetic, scale": ({"name": "task_arithmetic", "scale": 0.7}, lambda m, u, w, whole: w[u.name] * 0.7),
    "ram_plus, auto": (
        {"name": "ram_plus", "rescale": "auto", "shared": "elect"},
        lambda m, u, w, whole: w[u.name] * m.scale(u.name),
    ),
    "dare around task arithmetic": (
        {"name": "dare", "density": DENSITY, "then": {"name": "task_arithmetic", "scale": 1.0}},
        lambda m, u, w, whole: w[u.name] / DENSITY * m.drawn(u.name)[u.place],
    ),
    "calibrate around ram_plus": (  # the record's scale is lambda times s already
        {"name": "calibrate", "then": {"name": "ram_plus"}},
        lambda m, u, w, whole: w[u.name] * m.scale(u.name),
    ),
}


@pytest.fixture
def uniques(inputs: Path, whole: Any) -> list[Unique]:
    base = whole(inputs / "base").astype(np.float64)
    taus = np.array([whole(inputs / name) for name in AGENTS], np.float64) - base
    alone = (taus != 0).sum(axis=0) == 1
    found = []
    for name, tau in zip(AGENTS, taus, strict=True):
        place = alone & (np.abs(tau) > Overlap().threshold)
        found.append(Unique(name, place, tau[place]))
    assert [int(u.place.sum()) > 500 for u in found] == [True] * 3
    return found


@pytest.fixture
def assert_multiplier(inputs: Path, tmp_path: Path, golden_recipe: Any, whole: Any, uniques: list[Unique]) -> Any:
    """Merge, and compare merged with base + multiplier * tau: two float32 steps of either apart at most."""

    def check(method: dict[str, Any], expected: Any, weights: dict[str, float]) -> None:
        m = Merged(inputs, merge(golden_recipe(inputs, method, weights, seed=SEED), tmp_path / "out", overwrite=True))
        base, found = whole(inputs / "base").astype(np.float64), whole(tmp_path / "out").astype(np.float64)
        for u in uniques:
            update = np.broadcast_to(expected(m, u, weights, whole), u.tau.shape) * u.tau
            known = ~np.isnan(update)
            assert known.sum() > 20
            off = np.abs(found[u.place] - base[u.place] - update)[known]
            size = np.maximum(np.abs(base[u.place]), np.abs(u.tau))[known]
            assert (off <= 2 * 2.0**-23 * np.maximum(size, np.abs(update[known]))).all(), u.name

    return check


@pytest.mark.parametrize("name", ROWS)
def test_a_unique_element_gets_what_the_table_says(assert_multiplier: Any, name: str) -> None:
    _, settings, expected = ROWS[name]
    assert_multiplier({"name": name, **settings}, expected, WEIGHTS)


def test_a_unique_element_gets_what_the_table_says_of_one_or_two_agents(stack_of: Any, merged: Any) -> None:
    base, one, two = np.zeros(4), [0.5, 0.25, 0, 0], [0, 0, 2, -1]
    right = merged(resolve_method("slerp"), stack_of(base, [one, two]))
    np.testing.assert_allclose(right, np.sin(np.pi / 4) * np.add(one, two), rtol=1e-6)
    quarter = merged(resolve_method("slerp"), stack_of(base, [one, two], weights=(1.0, 3.0)))
    np.testing.assert_allclose(quarter[2:], np.sin(0.75 * np.pi / 2) * np.array(two)[2:], rtol=1e-6)
    near = merged(resolve_method({"name": "nearswap", "t": 0.3}), stack_of(base, [one], weights=(0.5,)))
    np.testing.assert_allclose(near, [0.15, 0.125, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("name", BEYOND)
def test_so_does_it_with_other_settings(assert_multiplier: Any, name: str) -> None:
    method, expected = BEYOND[name]
    assert_multiplier(method, expected, WEIGHTS)


def test_averaging_divides_by_the_number_of_agents_and_ram_by_nothing(
    inputs: Path, tmp_path: Path, golden_recipe: Any, whole: Any, uniques: list[Unique]
) -> None:
    """The paper's signal dilution: the same elements, the median multiplier under each method as it is."""
    base, told = whole(inputs / "base"), {}
    for name in ("task_arithmetic", "linear", "fisher", "ties", "dare", "ram", "ram_plus"):
        merge(golden_recipe(inputs, name), tmp_path / name)
        found = whole(tmp_path / name)
        told[name] = [float(np.median((found - base)[u.place] / u.tau)) for u in uniques]
    np.testing.assert_allclose(told["task_arithmetic"], [1 / 3] * 3, rtol=1e-3)
    np.testing.assert_allclose(told["linear"], [1 / 3] * 3, rtol=1e-3)
    np.testing.assert_allclose(told["ram"], [1, 1, 1], rtol=1e-3)
    np.testing.assert_allclose(told["ram_plus"], [1.2, 1.0902, 1.1228], rtol=1e-3)  # overlap.json
    assert told["ties"] == pytest.approx([1, 0, 0], rel=1e-3)  # the median change of a dense agent is trimmed
    assert all(0 < share < 1 for share in told["fisher"])


# the document


def table() -> dict[str, list[str]]:
    """The rows of the table in docs/methods.md that has six columns, by method, without the name."""
    rows = re.findall(r"^\| `([a-z_]+)` \|(.*)\|$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows if cells.count("|") == 4}


def test_the_documents_table_has_every_method_and_the_multiplier_that_is_tested_here() -> None:
    assert [name for name in table() if name not in FEW] == list(ROWS)
    assert set(ROWS) | set(FEW) == set(known_methods())
    assert {name: table()[name][-1] for name in FEW} == FEW
    for name, (multiplier, _, _) in ROWS.items():
        assert table()[name][-1] == multiplier, name


@pytest.mark.parametrize(
    "name", [n for n in ROWS if n not in ("dare", "disentangle", "fisher", "wudi", "svc", "region", "calibrate")]
)
def test_the_documents_table_tells_the_passes(inputs: Path, tmp_path: Path, golden_recipe: Any, name: str) -> None:
    record = merge(golden_recipe(inputs, {"name": name}), tmp_path / "out")
    assert table()[name][2] == f"{record.timing.folds} + 1"


@pytest.mark.parametrize(
    ("method", "passes"),
    [
        ({"name": "fisher"}, "0 + 1, normalize 1 + 1"),
        ({"name": "fisher", "normalize": True}, "0 + 1, normalize 1 + 1"),
        ({"name": "wudi", "steps": 1}, "1 + 1, exact 0 + 1"),
        ({"name": "wudi", "solver": "exact"}, "1 + 1, exact 0 + 1"),
        ({"name": "slerp"}, "1 + 1, else 0 + 1"),
        ({"name": "slerp", "per": "row"}, "1 + 1, else 0 + 1"),
        ({"name": "nearswap"}, "0 + 1"),
        ({"name": "region", "agent": "code"}, "0 + 1"),
        ({"name": "dare", "then": "ties"}, "those of `then`"),
        ({"name": "svc", "then": "ties"}, "those of `then`"),
        ({"name": "disentangle", "then": "ties"}, "one fold more than `then`"),
        ({"name": "calibrate", "then": "ties"}, "one fold more than `then`"),
    ],
    ids=str,
)
def test_the_documents_table_tells_the_passes_of_methods_with_settings(
    inputs: Path, tmp_path: Path, golden_recipe: Any, method: dict[str, Any], passes: str
) -> None:
    recipe = golden_recipe(inputs, method)
    few = {"slerp": 2, "nearswap": 1}.get(method["name"], 3)
    record = merge({**recipe, "agents": dict([*recipe["agents"].items()][:few])}, tmp_path / "out")
    expected = {
        "slerp": int("per" not in method),
        "nearswap": 0,
        "fisher": int(bool(method.get("normalize"))),
        "wudi": int("solver" not in method),
        "region": 0,
        "dare": 3,
        "svc": 3,
        "disentangle": 4,
        "calibrate": 4,
    }
    assert record.timing.folds == expected[method["name"]]
    assert table()[method["name"]][2] == passes


# the golden numbers


def test_the_copied_golden_files_are_the_originals(golden: Path, inputs: Path) -> None:
    copies = [path for path in inputs.rglob("*") if path.suffix in (".safetensors", ".json")]
    assert len(copies) > 20
    for path in copies:
        assert path.read_bytes() == (golden / path.relative_to(inputs)).read_bytes(), path


# what the methods say of themselves


def nothing(agents: int) -> OverlapCounts:
    return OverlapCounts(0, np.zeros((agents, agents), np.int64), np.zeros(agents, np.int64))


@pytest.mark.parametrize(
    ("label", "method"),
    [
        ("ram", "ram"),
        ("ram_plus", "ram_plus"),
        ("ram_plus_soft", "ram_plus_soft"),
        ("ram_plus, rescale auto", "ram_plus_auto"),
        ("calibrate around ram", {"name": "calibrate", "then": "ram"}),
        ("task_arithmetic", "task_arithmetic"),
        ("task_arithmetic, scale 1", {"name": "task_arithmetic", "scale": 1}),
        ("linear", "linear"),
    ],
    ids=str,
)
def test_what_a_probe_says_of_a_method_is_what_its_merge_does(
    inputs: Path, tmp_path: Path, golden_recipe: Any, whole: Any, uniques: list[Unique], label: str, method: Any
) -> None:
    """Multiplier and retention, before any merge and from the merged float32 numbers."""
    findings = probe(golden_recipe(inputs, "ram_plus"), full=True).findings
    assert findings is not None
    rows = {row.agent: row for row in findings.dilution if row.method == label}
    record = merge(golden_recipe(inputs, method), tmp_path / "out", full=True)
    base, found = whole(inputs / "base").astype(np.float64), whole(tmp_path / "out").astype(np.float64)
    assert record.retention is not None
    for u in uniques:
        multiplier = np.median((found - base)[u.place] / u.tau)
        assert rows[u.name].multiplier == pytest.approx(multiplier, rel=1e-3)
        assert rows[u.name].retention == pytest.approx(record.retention[u.name].changed, rel=2e-3)


def test_every_known_method_says_something_or_that_nothing_is_known() -> None:
    counts, energy = nothing(3), Energy(*np.zeros((6, 3)))
    for name in known_methods():
        with np.errstate(all="ignore"):
            found = resolve_method({"name": name, **({"agent": "a"} if name == "region" else {})}).dilution(
                ("a", "b", "c"), counts, energy
            )
        assert found.note
        assert found.multiplier.shape == found.retention.shape == (3,)


def test_what_is_dropped_at_random_is_known_on_average_of_a_linear_method_alone() -> None:
    names, counts, energy = ("a", "b"), nothing(2), Energy(*np.ones((6, 2)))
    with np.errstate(all="ignore"):
        known = Dare(density=0.25).dilution(names, counts, energy)
        unknown = Dare(density=0.25, then=Ram()).dilution(names, counts, energy)
        as_it_is = Dare(density=1, then=Ram()).dilution(names, counts, energy)
    assert (known.multiplier.tolist(), known.note) == ([0.5, 0.5], "on average; 2 where kept, else 0")
    assert np.isnan([unknown.multiplier, unknown.retention]).all()
    assert as_it_is.note == "1 + 0.1 * min(rho, 2)"
