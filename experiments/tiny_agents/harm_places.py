"""Three ways to say where an agent's damage lies, beside what taking each place out really does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agentmerge.harm import model as loaded
from agentmerge.harm.options import HarmOptions
from agentmerge.harm.places import place_of
from agentmerge.harm.questions import Encoder, answered, by_skill
from agentmerge.harm.reading import Between, drop_of
from agentmerge.importance.fisher import Fisher

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.harm.places import Place


def compared(base: Path, agent: Path, prompts: Path, skills: list[str]) -> dict[str, Any]:
    """By place, nats an answer over the prompts of these skills.

    - `without`: the drop less the drop of the agent with the base's tensors there: what skipping the place gains;
    - `alone`: the drop of the base with the agent's tensors there;
    - `trace`: the path integral of the gradient, what `agentmerge harm` uses;
    - `fisher`: 1/2 sum F tau^2, F the base's diagonal Fisher on the same answers, the second-order estimate of the KL
      divergence.
    """
    options, bench = HarmOptions(), loaded.Model(base, "cpu", "float32", 8192)
    encoder = Encoder(loaded.load_tokenizer_of(base), prompts, options)
    asked = [one for skill, found in by_skill(prompts, options.examples).items() if skill in skills for one in found]
    bench.become(Between())
    examples = answered(asked, encoder, bench.answers)
    before, weights = bench.read(examples), bench.weights(agent)
    names = {name: place_of(stored) for name, stored in bench.stored.items()}

    def drop(*skipped: str) -> float:
        bench.become(Between(weights, skipped=frozenset(skipped)))
        return drop_of(before, bench.read(examples), examples).mean

    whole = drop()
    found = {}
    for place in dict.fromkeys(names.values()):
        inside = [name for name, where in names.items() if where == place]
        found[place] = {"without": whole - drop(*inside), "alone": drop(*(names.keys() - set(inside)))}
    for way, shares in (("trace", bench.trace(weights, examples)), ("fisher", fisher(base, weights, examples))):
        for place, value in by_place(names, shares).items():
            found[place][way] = value
    return {"drop": whole, "places": {str(place): values for place, values in found.items()}, **agreement(found)}


def fisher(base: Path, weights: Any, examples: Any) -> dict[str, float]:
    """1/2 sum F tau^2 of every parameter."""
    measured = Fisher(base, "cpu", "float32")
    for one in examples:
        measured.observe(one)
    own = dict(measured._model.named_parameters())
    sums = dict(measured.sums())
    tau = {name: weights[name].float().numpy() - own[name].detach().numpy() for name in sums}
    return {name: float((sums[name] * tau[name] ** 2).sum()) / len(examples) / 2 for name in sums}


def by_place(names: dict[str, Place], values: dict[str, float]) -> dict[Place, float]:
    """Sums over the parameters of each place."""
    found: dict[Place, float] = {}
    for name, value in values.items():
        found[names[name]] = found.get(names[name], 0.0) + value
    return found


def agreement(found: dict[Place, dict[str, float]]) -> dict[str, Any]:
    """How each way goes with `without`: correlation over the places, and what it adds up to."""
    table = {
        way: np.array([values[way] for values in found.values()]) for way in ("without", "alone", "trace", "fisher")
    }
    return {
        "correlation": {way: float(np.corrcoef(table["without"], table[way])[0, 1]) for way in table},
        "sum": {way: float(values.sum()) for way, values in table.items()},
    }
