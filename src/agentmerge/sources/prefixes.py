"""What trainers and exporters put before a tensor's name, and the name without it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

WRAPPERS = re.compile(r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""What torch.compile, FSDP and activation checkpointing put into a name, anywhere."""
PREFIXES = re.compile(
    r"^(?:(?:module|base_model|policy|actor|actor_module|pretrained_model|model|language_model|text_model|transformer)\.)+"
)
"""What trainers and the several generations of transformers put before a name."""


def common_name(name: str) -> str:
    """A name without what trainers and exporters put before it."""
    return PREFIXES.sub("", WRAPPERS.sub("", name))


def by_common_name(names: Iterable[str]) -> dict[str, str]:
    """Common name to stored name, without those that several names have in common."""
    found: dict[str, str] = {}
    double = set()
    for name in names:
        common = common_name(name)
        if found.setdefault(common, name) != name:
            double.add(common)
    return {common: name for common, name in found.items() if common not in double}
