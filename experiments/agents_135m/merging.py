"""One merge by the product, and what its record says; one process does many of them."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rules import UNOWNED, UNTRAINED
from sets import untrained

if TYPE_CHECKING:
    from plans import Merge
    from rules import Rule


@dataclass(frozen=True)
class Kitchen:
    """Where a process merges: the seed's folder, and how many threads or which device it has."""

    folder: Path
    workers: int
    device: str  # of methods of whole matrices: cpu or cuda

    def source(self, name: str) -> Path:
        """A checkpoint of the seed."""
        return self.folder / "base" if name == "base" else self.folder / "agents" / name

    def recipe(self, merge: Merge) -> dict[str, Any]:
        """What the product is asked for."""
        rule, kept = merge.rule, self._kept(merge)
        method = {key: value for key, value in rule.method.items() if key != "keep" or kept is not None}
        output = {"dtype": "float32"} if rule.output == "float32" else {"rounding": rule.output}
        return {
            "base": str(self.source("base")),
            "agents": {name: self._agent(name, rule) for name in merge.agents},
            **({} if kept is None else {"keep": str(kept)}),
            "method": on_device(method, self.device) if rule.gpu else method,
            "rules": list(rule.rules),
            "inputs": {"unchanged": "allow"},
            "output": output,
            "seed": rule.seed,
            "run": {"workers": self.workers, "allow_slow": True},
        }

    def measured(self, merge: Merge) -> bool:
        """Whether all that a merge reads beside checkpoints is there (grams.py)."""
        reads = [self._beside(name, merge.rule) for name in merge.agents] if merge.rule.reads else []
        return all(path.exists() for path in (*reads, self._kept(merge)) if path is not None)

    def _agent(self, name: str, rule: Rule) -> dict[str, Any]:
        """An agent, with what was measured on it where the rule reads that."""
        beside = {rule.reads: str(self._beside(name, rule))} if rule.reads else {}
        return {"source": str(self.source(name)), "weight": rule.weights.get(name, 1.0), **beside}

    def _beside(self, name: str, rule: Rule) -> Path:
        """What a rule reads of an agent."""
        return self.folder / rule.reads / name

    def _kept(self, merge: Merge) -> Path | None:
        """The Gram matrices of what the base must keep; none where a set has an agent for every domain."""
        name = merge.rule.keep
        if name == UNTRAINED:
            name = f"even-{merge.set}" if untrained(merge.set) else ""
        elif name == UNOWNED:
            name = f"base-{merge.set}"
        return self.folder / "grams" / name if name else None

    def make(self, merge: Merge, out: Path) -> dict[str, Any]:
        """Merge into a new folder; what the record says of the agents."""
        import agentmerge

        shutil.rmtree(out, ignore_errors=True)
        started = time.perf_counter()
        record = agentmerge.merge(self.recipe(merge), out)
        seconds = time.perf_counter() - started
        return {"merge_seconds": round(seconds, 2), "merged_on": self.device, **told(record)}


def on_device(method: dict[str, Any], device: str) -> dict[str, Any]:
    """Its method of whole matrices, wherever it stands within wrappers, on this device."""
    if method["name"] in {"calibrate", "dare"}:
        return {**method, "then": on_device(method["then"], device)}
    return {**method, "device": device}


def told(record: Any) -> dict[str, Any]:
    """Per agent what was unique, scaled and rounded away; and the one factor of a calibrated method."""
    agents = {
        name: {
            "density": agent.density,
            "unique": agent.unique / agent.changed if agent.changed else None,
            "scale": agent.scale,
            "changed_lost": record.rounding[name].changed_lost,
            "rescale_survived": record.rounding[name].rescale_survived,
        }
        for name, agent in record.survey.agents.items()
        if name in record.rounding
    }
    found = {"told": shortened(agents)}
    scale = record.learned.get("calibration_scale")
    return found | ({"calibration_scale": shortened(scale)} if isinstance(scale, int | float) else {})


def shortened(value: Any) -> Any:
    """Floats to four digits."""
    if isinstance(value, dict):
        return {key: shortened(part) for key, part in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value
