"""Which files of a model on the hub a merge reads: one form of its weights, and what lies beside them."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from agentmerge.files.documents import json_or_nothing
from agentmerge.files.layout import INDEX
from agentmerge.files.torch_header import SUFFIXES
from agentmerge.sidefiles.copied import may_go_on
from agentmerge.sources.adapter_opening import FILES
from agentmerge.sources.index import SINGLE, TORCH_INDEX, TORCH_SINGLE
from agentmerge.sources.request import NOT_WEIGHTS, SHARD
from agentmerge.sources.trainers import adapters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


def beside_weights(sizes: Mapping[str, int]) -> list[str]:
    """What is fetched first: config, tokenizer, card and whatever else goes on, and the index of the weights.

    Args:
        sizes: bytes of every file of the repository by its path.
    """
    index = next((name for name in (INDEX, TORCH_INDEX) if name in sizes and _form(sizes) == _FORMS[name]), None)
    return [*may_go_on(sizes), *([index] if index else [])]


def weights_of(sizes: Mapping[str, int], folder: Path, deltas: Callable[[Sequence[str]], Sequence[str]]) -> list[str]:
    """The weight files that an opener will read.

    Args:
        sizes: bytes of every file of the repository by its path.
        folder: where the index lies, if there is one.
        deltas: tells which of some safetensors files hold sparse deltas; asked where names do not tell.
    """
    form = _form(sizes)
    if form == "safetensors":
        return _safetensors(_top(sizes, (".safetensors",)), sizes, folder, deltas)
    if form == "adapter":
        return [next(name for name in FILES if name in sizes)]
    found = _top(sizes, SUFFIXES)
    if TORCH_INDEX in sizes:
        return _indexed(folder / TORCH_INDEX, sizes)
    return [TORCH_SINGLE] if TORCH_SINGLE in found else found


_FORMS = {INDEX: "safetensors", TORCH_INDEX: "torch"}


def _form(sizes: Mapping[str, int]) -> str:
    """Whole weights before an adapter, safetensors before PyTorch files: never two forms of the same."""
    if INDEX in sizes or _top(sizes, (".safetensors",)):
        return "safetensors"
    torch = TORCH_INDEX in sizes or _top(sizes, SUFFIXES)
    return "torch" if torch or not any(name in sizes for name in FILES) else "adapter"


def _top(sizes: Mapping[str, int], suffixes: tuple[str, ...]) -> list[str]:
    """The files of the repository's own folder that may be a whole model's weights."""
    names = [name for name in sizes if name.endswith(suffixes) and "/" not in name and not name.startswith(".")]
    adapters = adapters_of(names)
    return [n for n in names if n not in adapters and not any(fnmatchcase(n, pattern) for pattern in NOT_WEIGHTS)]


def _safetensors(
    found: list[str], sizes: Mapping[str, int], folder: Path, deltas: Callable[[Sequence[str]], Sequence[str]]
) -> list[str]:
    whole = _indexed(folder / INDEX, sizes) if INDEX in sizes else [SINGLE] if SINGLE in found else []
    others = [name for name in found if name not in whole]
    if not whole and len(others) == 1:
        return others
    steps = [name for name in others if not (INDEX in sizes and SHARD.search(name))]
    chosen = [*whole, *(deltas(steps) if steps else ())]
    return chosen or others


def _indexed(index: Path, sizes: Mapping[str, int]) -> list[str]:
    """The shards that an index names and the repository has; whoever opens it tells what is wrong with it."""
    owners = json_or_nothing(index).get("weight_map")
    named = {re.sub(r"^\./", "", str(file)) for file in owners.values()} if isinstance(owners, dict) else set()
    return sorted(named & sizes.keys())
