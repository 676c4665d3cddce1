"""How far checkpoints are from the base: what a stored merge keeps of each agent, and where an agent's change lies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from files import read_weights
from merging import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = 1 << 24


class Changes:
    """Base and agents on a device, read once.

    Args:
        folder: of the seed.
        device: cpu or cuda.
    """

    def __init__(self, folder: Path, device: str):
        self._folder, self._device = folder, device
        self._base = read_weights(folder / "base", device)
        self._agents: dict[str, torch.Tensor] = {}

    def retention(self, merged: Path, agents: list[str]) -> dict[str, float]:
        """<merged - base, tau> / <tau, tau> of each agent, of what was stored; nothing where tau is 0."""
        flat = read_weights(merged, self._device).flat
        found = {}
        for name in agents:
            kept = energy = 0.0
            for base, agent, value in self._parts(self._flat(name), flat):
                tau = agent - base
                kept += float(((value - base) * tau).sum(dtype=torch.float64))
                energy += float(tau.square().sum(dtype=torch.float64))
            if energy:
                found[name] = kept / energy
        return shortened(found)

    def size(self, name: str) -> dict[str, Any]:
        """Share of elements that differ from the base, and the squared norm of the change by layer and kind."""
        agent = read_weights(self._folder / "agents" / name, self._device)
        different, by_place = 0, dict[str, float]()
        for tensor, base in self._base.views.items():
            tau = agent.views[tensor].float() - base.float()
            different += int((tau != 0).sum())
            place = place_of(tensor)
            by_place[place] = by_place.get(place, 0.0) + float(tau.square().sum(dtype=torch.float64))
        density = different / self._base.flat.numel()
        return shortened({"density": density, "norm": sum(by_place.values()) ** 0.5, "energy": by_place})

    def _flat(self, name: str) -> torch.Tensor:
        if name not in self._agents:
            self._agents[name] = read_weights(self._folder / "agents" / name, self._device).flat
        return self._agents[name]

    def _parts(self, *flats: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
        """Float32 parts of the base and of these."""
        for low in range(0, self._base.flat.numel(), CHUNK):
            yield tuple(flat[low : low + CHUNK].float() for flat in (self._base.flat, *flats))


def place_of(tensor: str) -> str:
    """attention, mlp or norm of a layer ("12 mlp"), or embeddings and the last norm."""
    words = tensor.split(".")
    layer = next((word for word in words if word.isdecimal()), "")
    kind = next((name for word, name in KINDS.items() if word in tensor), "norm")
    return f"{layer} {kind}".strip()


KINDS = {"embed": "embeddings", "self_attn": "attention", "mlp": "mlp"}
