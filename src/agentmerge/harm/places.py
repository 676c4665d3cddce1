"""Where in a model a tensor is: the group that is judged and skipped together, by its name alone."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_LAYER = re.compile(r"(?:^|.*\.)((?:layers|h|blocks|block|layer)\.)(\d+)\.([^.]+)")
OUTSIDE = -1


class Place(NamedTuple):
    """Tensors of one layer under one name, such as layer 3's `mlp`; outside the layers one module, such as its head."""

    layer: int
    """-1 outside the layers."""
    part: str
    """`mlp`, `self_attn`, `input_layernorm`: the word of the names; outside the layers all that is before `.weight`."""
    stem: str = ""
    """What stands before the number of the layer, such as "layers."."""

    @property
    def glob(self) -> str:
        """The rule's `tensors` that fit these and no others."""
        return f"{self.part}*" if self.layer == OUTSIDE else f"*{self.stem}{self.layer}.{self.part}.*"

    def __str__(self) -> str:
        return self.part if self.layer == OUTSIDE else f"layer {self.layer} {self.part}"


def place_of(tensor: str) -> Place:
    """The place of a tensor, such as layer 3, `mlp` of "model.layers.3.mlp.up_proj.weight"."""
    found = _LAYER.match(tensor)
    if found is not None:
        return Place(int(found[2]), found[3], found[1])
    return Place(OUTSIDE, tensor.rpartition(".")[0] or tensor)


def globs_of(places: Iterable[Place], every: Iterable[Place]) -> list[str]:
    """The fewest globs that fit some of a model's places and no others.

    Args:
        places: that are meant.
        every: all places of the model.
    """
    meant, found = set(places), []
    by_part = {part: set(group) for part, group in groupby(sorted(every, key=_by_part), key=_by_part)}
    for (inside, part), group in by_part.items():
        wanted = sorted(meant & group)
        if wanted and len(wanted) == len(group):
            found.append(f"*.{part}.*" if inside else wanted[0].glob)
        else:
            found += [place.glob for place in wanted]
    return found


def _by_part(place: Place) -> tuple[bool, str]:
    return place.layer != OUTSIDE, place.part
