"""adapter_config.json of a LoRA adapter: what its matrices are multiplied by, or why they can't be added to a base."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentmerge.errors import SourceError, Where
from agentmerge.files.documents import FETCH, abbreviated, without_bom
from agentmerge.files.documents import strict_json as parse
from agentmerge.sources.trainers import UNLORA

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

CONFIG = "adapter_config.json"
OTHER_KINDS = {
    "use_dora": "DoRA, which also rescales every column",
    "use_qalora": "QALoRA, whose matrices act on pooled inputs",
    "use_bdlora": "block-diagonal LoRA",
    "target_parameters": "LoRA on bare parameters (target_parameters), such as stacked experts",
    "trainable_token_indices": "single trained tokens (trainable_token_indices)",
    "layer_replication": "replicated layers (layer_replication)",
    "alora_invocation_tokens": "an activated LoRA (aLoRA), which acts on a part of the text only",
    "arrow_config": "a router of several adapters (Arrow)",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "megatron_config": "a LoRA on layers of Megatron",
}
"""Settings of a LoRA config that make something else of it than the sum of the base and a product."""
PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of init_lora_weights that leave the base as it is; PiSSA, OLoRA, CorDA, LoftQ and others take a part of it."""
LONGEST, MOST_STARS = 300, 3
"""Of a pattern: characters, and parts that may match anything; more may take a regular expression forever."""


@dataclass(frozen=True)
class AdapterConfig:
    """The settings that count, checked."""

    path: Path
    rank: int
    alpha: float
    root: bool
    """rsLoRA: the scale is alpha / sqrt(rank), not alpha / rank."""
    transposed: bool
    """fan_in_fan_out: the base stores its matrices [in, out]."""
    tied: bool
    """ensure_weight_tying: what is trained of the embedding holds for the head that is tied to it."""
    base: str
    """What it was trained on, as its trainer called it; "" where it does not say."""
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)
    """By the name of a module or a regular expression for its end."""

    def rank_of(self, module: str) -> int:
        """The rank of a module: that of the first pattern that it matches, else that of all."""
        return self.ranks.get(_pattern(self.ranks, module), self.rank)

    def scale_of(self, module: str) -> float:
        """What the product of a module's matrices is multiplied by: alpha / rank, or alpha / sqrt(rank)."""
        rank, alpha = self.rank_of(module), self.alphas.get(_pattern(self.alphas, module), self.alpha)
        return alpha / math.sqrt(rank) if self.root else alpha / rank


def adapter_config(raw: bytes, path: Path) -> AdapterConfig:
    """The settings of adapter_config.json.

    Args:
        raw: its content.
        path: for messages.

    Raises:
        SourceError: it is no LoRA that can be added to a base, or says something impossible.
    """
    found = parse(without_bom(raw), str(path), Where(path=str(path)))
    _refuse_other_kinds(found, path)
    flags = {key: _flag(found, key, path) for key in ("use_rslora", "fan_in_fan_out", "ensure_weight_tying")}
    base = found.get("base_model_name_or_path")
    return AdapterConfig(
        path,
        _rank(found.get("r", 8), "r", path),
        _alpha(found.get("lora_alpha", 8), "lora_alpha", path),
        flags["use_rslora"],
        flags["fan_in_fan_out"],
        flags["ensure_weight_tying"],
        base if isinstance(base, str) else "",
        {key: _rank(value, f"rank_pattern.{key}", path) for key, value in _patterns(found, "rank_pattern", path)},
        {key: _alpha(value, f"alpha_pattern.{key}", path) for key, value in _patterns(found, "alpha_pattern", path)},
    )


def wrong(path: Path, found: str, expected: str = "", todo: str = FETCH, tensor: str = "") -> SourceError:
    """The error for an adapter that says or holds something else than it should.

    Args:
        path: of its config or its weights.
        found: what is there.
        expected: instead.
        todo: whole sentences.
        tensor: that it is about.
    """
    return SourceError(f"{path}: {found}", expected=expected, todo=todo, where=Where(tensor=tensor, path=str(path)))


def _refuse_other_kinds(found: Mapping[str, Any], path: Path) -> None:
    kind = found.get("peft_type", "LORA")
    if kind != "LORA":
        raise wrong(path, f"an adapter of kind {abbreviated(kind)}", "LORA", UNLORA)
    for key, words in OTHER_KINDS.items():
        if found.get(key) not in (None, False, [], {}):
            raise wrong(path, f"{key} is set: {words}", "a plain LoRA", UNLORA)
    start = found.get("init_lora_weights", True)
    if not isinstance(start, bool | str | None) or start not in PLAIN_STARTS:
        todo = f"Such a start takes its first product out of the base, which is then another one. {UNLORA}"
        raise wrong(path, f"init_lora_weights is {abbreviated(start)}", "a start that leaves the base as it is", todo)


def _flag(found: Mapping[str, Any], key: str, path: Path) -> bool:
    value = found.get(key, False)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise wrong(path, f"{key} is {abbreviated(value)}", "true or false")


def _rank(value: Any, key: str, path: Path) -> int:
    if type(value) is int and 0 < value < 2**31:
        return value
    raise wrong(path, f"{abbreviated(key)} is {abbreviated(value)}", "a whole number from 1 on")


def _alpha(value: Any, key: str, path: Path) -> float:
    if type(value) in (int, float) and abs(value) < 2**31:
        if value == 0:
            todo = "Put the number there that it was trained with."
            raise wrong(path, f"{abbreviated(key)} is 0: nothing of the training is left then", "another", todo)
        return float(value)
    raise wrong(path, f"{abbreviated(key)} is {abbreviated(value)}", "a number other than 0")


def _patterns(found: Mapping[str, Any], key: str, path: Path) -> Iterable[tuple[str, Any]]:
    patterns = found.get(key) or {}
    if not isinstance(patterns, dict):
        raise wrong(path, f"{key} is {abbreviated(patterns)}", "modules with numbers")
    for pattern in patterns:
        try:
            with warnings.catch_warnings(action="error", category=FutureWarning):  # sets that later Pythons read anew
                re.compile(rf"(?:.*\.)?(?:{pattern})$")
        except (re.error, RecursionError, OverflowError, FutureWarning):
            raise wrong(path, f"{key} has {abbreviated(pattern)}", "a module or a regular expression") from None
        stars = len(re.findall(r"(?<!\()[*+?}]", pattern))
        if len(pattern) > LONGEST or stars > MOST_STARS or re.search(r"\)[*+?{]|[*+?}][*+{]", pattern):
            expected = "the name of a module, or a regular expression with few repetitions, none of them of a group"
            raise wrong(path, f"{key} has {abbreviated(pattern)}", expected, UNLORA)
    return patterns.items()


def _pattern(patterns: Iterable[str], module: str) -> str:
    """The first pattern that a module's name, or what follows one of its points, matches to the end."""
    return next((pattern for pattern in patterns if re.match(rf"(.*\.)?({pattern})$", module)), "")
