"""Every method once more, written from docs/methods.md and docs/arithmetic.md alone: whole tensors, one after another.

It shares nothing with the product but the addressed random bits. Sums of energies are exact here (`fsum`) and float64
over leaves there, so what hangs on them is equal up to a rounding and not bit for bit; `is_exact` tells.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import fsum, inf
from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.randomness import random_bits, stream_key

if TYPE_CHECKING:
    from agentmerge.tensors import Array

F32 = np.float32


@dataclass(frozen=True)
class Case:
    """A base and its agents; agents in the order of their sorted names, arrays flat."""

    base: dict[str, Array]
    agents: dict[str, dict[str, Array]]
    weights: dict[str, float]
    importance: dict[str, dict[str, Array]]
    skip: dict[str, set[str]] = field(default_factory=dict)
    """By tensor: agents that a rule skips there. One whose file lacks the tensor is not listed."""
    take: dict[str, str] = field(default_factory=dict)
    """By tensor: from whom it is copied."""

    @property
    def merged(self) -> list[str]:
        """The tensors that a method works on."""
        return [name for name in sorted(self.base) if name not in self.take]

    def absent(self, name: str) -> set[str]:
        """Who counts as unchanged in a tensor."""
        return {agent for agent in self.agents if name not in self.agents[agent]} | self.skip.get(name, set())

    def tau(self) -> dict[str, Array]:
        """float32(agent) - float32(base), float32 [agents, n] by merged tensor; 0 where an agent is absent."""
        found = {}
        for name in self.merged:
            base, absent = self.base[name].astype(F32), self.absent(name)
            values = [base if agent in absent else self.agents[agent][name].astype(F32) for agent in self.agents]
            with np.errstate(all="ignore"):
                found[name] = np.stack([value - base for value in values])
        return found


def is_exact(method: dict[str, Any]) -> bool:
    """Whether the method's numbers hang on no energies, norms or retentions."""
    if method["name"] == "calibrate" or method.get("normalize") is True or method.get("rescale") == "auto":
        return False
    return method["name"] != "ram_plus_auto" and ("then" not in method or is_exact(method["then"]))


def merge(case: Case, method: dict[str, Any], tau: dict[str, Array] | None = None) -> dict[str, Array]:
    """The merged tensors before the output cast, float32 [n] by name."""
    kind = "ram" if method["name"].startswith("ram") else method["name"]
    with np.errstate(all="ignore"):
        return _METHODS[kind](case, method, case.tau() if tau is None else tau, tau is None)


def added(base: Array, update: Array) -> Array:
    """An update of 0 keeps the base's own bits."""
    return np.where(update == 0, base, base + update)


def changed(tau: Array, method: dict[str, Any]) -> Array:
    """Beyond the threshold, strictly."""
    return np.abs(tau) > F32(method.get("threshold", 1e-5))


def counts(tau: dict[str, Array], method: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Unique and shared elements of every agent over all merged tensors."""
    by = np.concatenate([changed(rows, method) for rows in tau.values()], axis=1)
    c = by.sum(axis=0)
    return (by & (c == 1)).sum(axis=1).tolist(), (by & (c >= 2)).sum(axis=1).tolist()


def _values(case: Case, name: str, t: int, tau: Array, own: bool) -> Array:
    """The agent's own number, where the task vectors are its own."""
    agent, base = list(case.agents)[t], case.base[name].astype(F32)
    if not own:
        return base + tau[t]
    return base if agent in case.absent(name) else case.agents[agent][name].astype(F32)


def _weights(case: Case) -> list[Any]:
    return [F32(case.weights[agent]) for agent in case.agents]


def _total(rows: Any, by: Any, n: int) -> Array:
    total = np.zeros(n, F32)
    for row, chosen in zip(rows, by, strict=True):
        total = np.where(chosen, total + row, total)
    return total


def _shared(case: Case, name: str, method: dict[str, Any], u: Array, by: Array) -> Array:
    """What a shared element gets."""
    choice, power, n = method.get("shared", "mean"), method.get("shared_power", 1), u.shape[1]
    total, c = _total(u, by, n), by.sum(axis=0)
    divisor = np.array([1.0, *(k**power for k in range(1, len(u) + 1))], F32)
    if choice == "sum":
        return total
    if choice == "elect":
        by = by & (np.sign(u) == np.sign(total)) & (total != 0)
        return _total(u, by, n) / divisor[by.sum(axis=0)]
    if choice == "importance":
        f = np.stack([_importance(case, name, agent) for agent in case.agents])
        known = _total(f, by, n)
        return np.where(known == 0, total / np.maximum(c, 1).astype(F32), _total(f * u, by, n) / known)
    return total / divisor[c]


def _importance(case: Case, name: str, agent: str) -> Array:
    if agent in case.absent(name):
        return np.zeros(case.base[name].size, F32)
    return case.importance[agent][name].astype(F32)


def _ram(case: Case, method: dict[str, Any], tau: dict[str, Array], own: bool) -> dict[str, Array]:
    places = [[name] for name in tau] if method.get("scope") == "tensor" else [list(tau)]
    result = {}
    for place in places:
        part = {name: tau[name] for name in place}
        scale = lambdas(case, method, part)
        for name, rows in part.items():
            base, w = case.base[name].astype(F32), _weights(case)
            by, u = changed(rows, method), np.stack([w[t] * row for t, row in enumerate(rows)])
            c, merged = by.sum(axis=0), base
            for t in range(len(rows)):
                plain = scale[t] == 1 and w[t] == 1
                alone = _values(case, name, t, rows, own) if plain else added(base, F32(scale[t]) * u[t])
                merged = np.where(by[t] & (c == 1), alone, merged)
            result[name] = np.where(c >= 2, added(base, _shared(case, name, method, u, by)), merged)
    return result


def lambdas(case: Case, method: dict[str, Any], tau: dict[str, Array]) -> list[float]:
    """Lambda of every agent over these tensors."""
    name, agents = method["name"], range(len(case.agents))
    rescale = method.get("rescale", {"ram": 0, "ram_plus_auto": "auto"}.get(name, 0.1))
    if rescale == "auto":
        return [_balanced(case, method, tau, t) for t in agents]
    unique, shared = counts(tau, method)
    if method.get("curve", "soft" if name == "ram_plus_soft" else "linear") == "soft":
        return [1 + rescale * shared[t] / max(unique[t] + shared[t], 1) for t in agents]
    rho = [shared[t] / unique[t] if unique[t] else (inf if shared[t] else 0) for t in agents]
    return [1 + rescale * min(rho[t], method.get("clip", 2.0)) for t in agents]


def _balanced(case: Case, method: dict[str, Any], tau: dict[str, Array], t: int) -> float:
    unique, shared, kept = [], [], []
    for name, rows in tau.items():
        by, u = changed(rows, method), np.stack([w * row for w, row in zip(_weights(case), rows, strict=True)])
        c, wide = by.sum(axis=0), u[t].astype(float)
        unique += (wide[by[t] & (c == 1)] ** 2).tolist()
        shared += (wide[by[t] & (c >= 2)] ** 2).tolist()
        kept += (wide * _shared(case, name, method, u, by))[by[t] & (c >= 2)].tolist()
    if not np.isfinite([*unique, *shared, *kept]).all():
        return float("nan")
    alone = fsum(unique)
    if not alone:
        return 1.0
    return min(max(1 + (fsum(shared) - fsum(kept)) / alone, 0.0), method.get("bound", inf))


def _sum(case: Case, rows: Array) -> Array:
    total = np.zeros(rows.shape[1], F32)
    for w, row in zip(_weights(case), rows, strict=True):
        total += w * row
    return total


def _task_arithmetic(case: Case, method: dict[str, Any], tau: dict[str, Array], own: bool) -> dict[str, Array]:
    scale = F32(method.get("scale", 1 / len(case.agents)))
    return {name: added(case.base[name].astype(F32), scale * _sum(case, rows)) for name, rows in tau.items()}


def _linear(case: Case, method: dict[str, Any], tau: dict[str, Array], own: bool) -> dict[str, Array]:
    divisor = F32(sum(map(float, _weights(case))))
    return {name: added(case.base[name].astype(F32), _sum(case, rows) / divisor) for name, rows in tau.items()}


def _ties(case: Case, method: dict[str, Any], tau: dict[str, Array], own: bool) -> dict[str, Array]:
    density, w = method.get("density", 0.2), _weights(case)
    places = [[name] for name in tau] if method.get("scope") == "tensor" else [list(tau)]
    kept, signs = {}, {}
    for place in places:
        magnitude = np.abs(np.concatenate([tau[name] for name in place], axis=1))
        k = int((1 - density) * magnitude.shape[1])
        limit = np.sort(magnitude, axis=1)[:, k - 1] if k else np.zeros(len(magnitude), F32)
        for name in place:
            kept[name] = np.where(np.abs(tau[name]) >= limit[:, None], tau[name], F32(0))
            signs[name] = np.sign(_sum(case, kept[name]))
    elected = Counter(float(sign) for row in signs.values() for sign in row if np.isfinite(sign))
    zero = {"majority": np.sign(elected[1.0] - elected[-1.0]), "plus": 1, "zero": 0}[
        method.get("zero_sign", "majority")
    ]
    result = {}
    for name, rows in kept.items():
        sign = np.where(signs[name] == 0, F32(zero), signs[name])
        u = np.stack([w[t] * row for t, row in enumerate(rows)])
        by = (np.sign(u) == sign) & (u != 0)
        divisor = _total([np.full(sign.size, x) for x in w], by, sign.size)
        total = _total(u, by, sign.size)
        mean = np.where(divisor == 0, F32(0), total / divisor) if method.get("normalize", True) else total
        result[name] = added(case.base[name].astype(F32), F32(method.get("scale", 1.0)) * mean)
    return result


def _fisher(case: Case, method: dict[str, Any], tau: dict[str, Array], own: bool) -> dict[str, Array]:
    floor, k = F32(method.get("floor", 1e-6)), dict(zip(case.agents, _weights(case), strict=True))
    if method.get("normalize"):
        for agent in case.agents:
            squares = [float(x) ** 2 for name in tau for x in _importance(case, name, agent)]
            norm = fsum(squares) ** 0.5 + float(floor)
            k[agent] = k[agent] / norm if norm else 0.0
        most = max(map(abs, k.values())) or 1
        k = {agent: F32(x / most) for agent, x in k.items()}
    result = {}
    for name, rows in tau.items():
        total, divisor, important = np.zeros((3, rows.shape[1]), F32)
        for agent, row in zip(case.agents, rows, strict=True):
            if agent not in case.absent(name):
                f = _importance(case, name, agent)
                total, divisor = total + k[agent] * (f + floor) * row, divisor + k[agent] * (f + floor)
                important = np.where(f != 0, F32(1), important)
        mean = np.where((important == 0) | (divisor == 0), F32(0), total / divisor)
        result[name] = added(case.base[name].astype(F32), F32(method.get("scale", 1.0)) * mean)
    return result


def _region(case: Case, method: dict[str, Any], tau: dict[str, Array], own: bool) -> dict[str, Array]:
    t, factor, result = list(case.agents).index(method["agent"]), F32(method.get("factor", 1.0)), {}
    for name, rows in tau.items():
        base, by = case.base[name].astype(F32), changed(rows, method)
        c = by.sum(axis=0)
        inside = by[t] & {"unique": c == 1, "shared": c >= 2, "changed": c >= 1}[method.get("keep", "unique")]
        value = _values(case, name, t, rows, own) if factor == 1 else added(base, factor * rows[t])
        result[name] = np.where(inside, value, base)
    return result


def _dare(case: Case, method: dict[str, Any], tau: dict[str, Array], own: bool) -> dict[str, Array]:
    density, seed, thinned = method.get("density", 0.5), method.get("seed", 0), {}
    for name, rows in tau.items():
        keys = [stream_key(seed, "dare", agent, name) for agent in case.agents]
        keep = np.stack([random_bits(key, 0, rows.shape[1]) for key in keys]) < density * 2.0**32
        thinned[name] = np.where(keep, rows / F32(density), F32(0))
    return merge(case, method["then"], None if own and density == 1 else tau if density == 1 else thinned)


def retention(moved: dict[str, Array], tau: dict[str, Array], t: int, chosen: dict[str, Array]) -> float | None:
    """<moved, tau> / <tau, tau> over the chosen elements; None of nothing."""
    pairs = [(moved[n][chosen[n][t]].astype(float), tau[n][t][chosen[n][t]].astype(float)) for n in tau]
    kept, energy = (fsum(x for pair in pairs for x in (pair[side] * pair[1]).tolist()) for side in (0, 1))
    return kept / energy if energy else None


def _calibrate(case: Case, method: dict[str, Any], tau: dict[str, Array], own: bool) -> dict[str, Array]:
    inner = merge(case, method["then"], None if own else tau)
    moved = {name: inner[name] - case.base[name].astype(F32) for name in tau}
    every = {name: np.ones_like(rows, np.bool_) for name, rows in tau.items()}
    found = [retention(moved, tau, t, every) for t in range(len(case.agents))]
    known = [x for x in found if x is not None]
    mean = sum(known) / len(known) if known else 1.0
    if mean <= 0:
        return {name: np.full_like(rows, np.nan) for name, rows in moved.items()}  # refused
    scale = F32(method.get("retention", 1.0) / mean) if known else F32(1)
    return {name: added(case.base[name].astype(F32), scale * rows) for name, rows in moved.items()}


def _wudi(case: Case, method: dict[str, Any], tau: dict[str, Array], own: bool) -> dict[str, Array]:
    """Of tensors that are no linear layers: their mean, their sum, or the base."""
    by = {"mean": F32(len(case.agents)), "sum": F32(1), "base": F32(inf)}[method.get("others", "mean")]
    return {name: added(case.base[name].astype(F32), _sum(case, rows) / by) for name, rows in tau.items()}


_METHODS = {
    "ram": _ram,
    "task_arithmetic": _task_arithmetic,
    "linear": _linear,
    "ties": _ties,
    "fisher": _fisher,
    "region": _region,
    "dare": _dare,
    "calibrate": _calibrate,
    "wudi": _wudi,
}
