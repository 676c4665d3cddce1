"""What can be seen of a model that lies here: its number of layers and the dtypes of its tensors. Never an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.errors import MergeError
from agentmerge.files.documents import json_or_nothing
from agentmerge.sources.hub import local_path
from agentmerge.sources.opening import opened
from agentmerge.tensors import MERGEABLE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""Names of the number of layers in a config."""
OTHER_PARTS = ("vision", "audio", "image", "video", "speech", "code2wav", "talker", "token2wav")
"""Words in the names of sections that are no language model's."""


def layers_of(model: str) -> int | None:
    """The number of layers in a checkpoint's config.json; None where there is none."""
    return next(_layers_in(json_or_nothing(local_path(model) / "config.json")), None)


def _layers_in(config: Mapping[str, Any]) -> Iterator[int]:
    """Those that a config says, its own before those of its language model's section."""
    yield from (config[name] for name in LAYERS if type(config.get(name)) is int and config[name] > 0)
    for name, section in config.items():
        if isinstance(section, dict) and name.endswith("_config") and not any(word in name for word in OTHER_PARTS):
            yield from _layers_in(section)


def dtypes_of(model: str) -> frozenset[str]:
    """The dtypes of a checkpoint's float tensors, safetensors spellings; none where there is no whole checkpoint."""
    try:
        with opened(None, model) as source:
            return frozenset(spec.dtype for spec in source.specs.values() if spec.dtype in MERGEABLE)
    except (MergeError, OSError):
        return frozenset()
