"""Tensors that show that a checkpoint is no whole model, though its folder looks like one: LoRA matrices, empty ones.

Their training lies elsewhere, so that every way round the missing or misshapen tensors would lose it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from agentmerge.errors import AlignmentError, Where, shortened
from agentmerge.sources.prefixes import common_name
from agentmerge.sources.trainers import UNLORA

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.alike.family import Family
    from agentmerge.sources.source import Source

LORA = re.compile(
    r"(?:^|[._])(?:lora_\w+|ia3_l|oft_r|hada_w\w*|vera_lambda_\w"
    r"|lokr_w\w*|boft_[RsS])(?:[._]|$)|\.base_layer\.|\.(?:modules_to_save|original_module|token_adapter)\."
)
"""What PEFT and its like put into the names of the tensors that they train, and of those that they wrap."""
MATRIX = re.compile(r"(?:embed_tokens|wte|word_embeddings|lm_head|proj|mlp|attn|attention)\b.*\bweight$")
"""What no model has empty; a tensor of another name may be, where every source has it so."""
GATHER = (
    "DeepSpeed ZeRO-3 leaves such empty places where it was not told to gather the weights: put the model together "
    "with the zero_to_fp32.py beside its state (`python zero_to_fp32.py CHECKPOINT DIR --safe_serialization`), "
    "or save again with stage3_gather_16bit_weights_on_model_save. Taking these tensors from the base would drop their "
    "training."
)


def complete(family: Family) -> Family:
    """Every source that is a whole model; the others are refused with what would make them whole.

    A model that comes with adapters of its own has them in the base and in its agents: there they are like any tensor.
    """
    base = {common_name(name): spec.elements for name, spec in family.base.specs.items()}
    ours = _adapters(family.base)
    if ours and not any(ours.keys() & _adapters(agent).keys() for agent in family.agents.values()):
        raise _unmerged(family.base, list(ours.values()))
    filled = {common_name(n) for a in family.agents.values() for n, spec in a.specs.items() if spec.elements}
    empty = [n for n, spec in family.base.specs.items() if not spec.elements]
    if lost := [n for n in empty if common_name(n) in filled or MATRIX.search(n)]:
        raise _hollow(family.base, lost)
    return family.each(lambda _, agent: _check(agent, base))[0]


def _check(agent: Source, base: Mapping[str, int]) -> None:
    """Raise AlignmentError for adapters that the base has not, and for tensors that are empty where the base's are not.

    Args:
        agent: as opened.
        base: elements of the base's tensors, by common name.
    """
    if lora := [name for common, name in _adapters(agent).items() if common not in base]:
        raise _unmerged(agent, lora)
    empty = [name for name, spec in agent.specs.items() if not spec.elements and base.get(common_name(name))]
    if empty:
        raise _hollow(agent, empty)


def _adapters(source: Source) -> dict[str, str]:
    """The tensors of adapters: common name to stored name."""
    return {common_name(name): name for name in source.specs if LORA.search(name)}


def _unmerged(source: Source, lora: list[str]) -> AlignmentError:
    return AlignmentError(
        f"{source.role} ({source.text}) holds {len(lora)} tensors of a LoRA adapter that is not merged into its "
        f"weights: {shortened(lora)}",
        expected="the weights of the whole model",
        todo=UNLORA,
        where=Where(source.role, source.text, lora[0]),
    )


def _hollow(source: Source, empty: list[str]) -> AlignmentError:
    shape = list(source.specs[empty[0]].shape)
    return AlignmentError(
        f"{source.role} ({source.text}) holds {len(empty)} tensors without a number, shape {shape}: {shortened(empty)}",
        expected="the weights of the whole model",
        todo=GATHER,
        where=Where(source.role, source.text, empty[0]),
    )
