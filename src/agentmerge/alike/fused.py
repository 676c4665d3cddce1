"""How experts lie that a checkpoint stores in one tensor per layer: which way round, and gate and up how.

    straight  gate_up_proj [experts, 2 * rows, hidden], down_proj [experts, hidden, rows]     Qwen3.5, Gemma 4, Granite
    turned    gate_up_proj [experts, hidden, 2 * rows], down_proj [experts, rows, hidden]     Llama 4, gpt-oss, Qwen3-VL

The two shapes together never fit both, whatever the sizes, so they tell the orientation with certainty. Where gate and
up are not joined, or a partner is lacking, the config's hidden size tells it, unless the matrix is square. That gate
and up alternate is told by nothing but the architecture: gpt-oss and Inkling do so, everything else that transformers
5.24 knows has the gate before the up.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from agentmerge.sources.language import language_model
from agentmerge.tensors import Experts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.tensors import TensorSpec

PARTNERS = (
    ("gate_up_proj", "down_proj"),
    ("w13_weight", "w2_weight"),
    ("fc1.weight", "fc2.weight"),
    ("input_linear.weight", "output_linear.weight"),
)
"""What holds gate and up, and what is behind them: most; Inkling; Aria; Granite and JetMoE."""
ALONE = ("gate_proj", "up_proj")
"""What takes a layer's input where gate and up are not joined."""
BY_TURNS = frozenset({"gpt_oss"})
"""Architectures (`model_type`) whose gate and up alternate."""
BY_TURNS_NAMED = "w13_weight"
"""What does so whatever the architecture."""
_KNOWN = "|".join(re.escape(name) for name in (*(name for pair in PARTNERS for name in pair), *ALONE))
FUSED = re.compile(rf"^(?P<stem>.*\.)(?P<name>{_KNOWN})(?P<suffix>(?:\.weight)?)$")


def fused_experts(specs: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> dict[str, Experts]:
    """How the matrices lie in every tensor of three dimensions that is called like a stack of experts.

    Args:
        specs: all tensors of a checkpoint.
        config: its config.json; {} where there is none.
    """
    model = language_model(config)
    hidden = model.get("hidden_size")
    return {
        name: _lie(found, spec.shape, specs, hidden if isinstance(hidden, int) else 0, model.get("model_type"))
        for name, spec in specs.items()
        if len(spec.shape) == 3 and (found := FUSED.match(name))
    }


def _lie(
    found: re.Match[str], shape: tuple[int, ...], specs: Mapping[str, TensorSpec], hidden: int, architecture: Any
) -> Experts:
    stem, name, suffix = found["stem"], found["name"], found["suffix"]
    for inner, outer in PARTNERS:
        if name not in (inner, outer):
            continue
        first, second = (specs.get(f"{stem}{one}{suffix}") for one in (inner, outer))
        turned = None if first is None or second is None else _by_pair(first.shape, second.shape)
        if turned is None:
            turned = _by_hidden(shape, hidden, first=name == inner)
        if name == outer:
            return Experts(turned)
        by_turns = name == BY_TURNS_NAMED or architecture in BY_TURNS
        outputs = shape[2 if turned else 1]
        return Experts(turned, ("pairs" if by_turns else "halves") if outputs % 2 == 0 else "")
    return Experts(_by_hidden(shape, hidden, first=True))


def _by_pair(first: tuple[int, ...], second: tuple[int, ...]) -> bool | None:
    """Whether [experts, in, out], by the shapes of gate and up together and of down; None where they fit neither."""
    if len(first) != 3 or len(second) != 3:
        return None
    if first[1] == 2 * second[2] and first[2] == second[1]:
        return False
    return True if first[2] == 2 * second[1] and first[1] == second[2] else None


def _by_hidden(shape: tuple[int, ...], hidden: int, *, first: bool) -> bool | None:
    """The same by the size of what goes through all layers, which the first matrix takes in and the last gives out."""
    if shape[1] == shape[2] or hidden not in shape[1:]:
        return None
    return (shape[1] == hidden) == first
