"""Whether agents are this base's own, and each another one: what samples of their weights show before any is read.

Looked at are the middles of up to LOOKED matrices, as sources/sampled.py takes them. Nothing of it stops a merge.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from agentmerge.alike.storage import defined, rounds
from agentmerge.errors import MergeError, Note, role_of, shortened
from agentmerge.sources.sampled import in_turn, middle
from agentmerge.tensors import Array, as_float32

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentmerge.alike.family import Family
    from agentmerge.sources.source import Source
    from agentmerge.tensors import TensorSpec

LOOKED = 64
"""Matrices that are looked at: a quarter of a million elements of a large model, about 20 ms per agent."""
FOREIGN = 0.5
"""Cosine of an agent's matrices and the base's up to which it is from another base. RL leaves it above 0.999, full
fine-tuning and merged adapters above 0.9 (task vectors up to 0.3 times as long as the base), and that of another base
is 0 (1.4 times as long). At 0.5 and equal norms a task vector is as long as the base."""
FEWEST = 256
"""Elements of a matrix, not 0, whose cosine is one: chance gives 1 / sqrt(FEWEST), a sixteenth."""
CHANGED = 64
"""Changed elements of an agent that comparing it with another one takes."""
SHARED = 0.6
"""Share of one agent's changes that another one has, by the same amount, from which on both come from elsewhere. Agents
that were trained apart reach about 0.3, were the one dense and the steps of both the smallest. If base and agent are
swapped it is 1 less the density of the other agents, and after a common start about the same."""
PAIRED = 8
"""Agents of which every pair is compared; of more, each with the next: no work grows with the square of agents."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """The samples of one agent, laid after each other."""

    name: str
    values: Array
    """float32 [n]"""
    changed: Array
    """bool [n]"""

    @property
    def digest(self) -> bytes:
        """The same for two agents whose samples are the same numbers."""
        return sha256(self.values.tobytes()).digest()


@dataclass(frozen=True, slots=True)
class _Share:
    """How much of what one agent changed another one has, by the same amount."""

    of: str
    has: str
    share: float


def kin_notes(family: Family) -> list[Note]:
    """A warning of every agent that is from another base, or another one over again; of shared changes, one.

    Args:
        family: alike; what it has of sources whose numbers are not here is not looked at.
    """
    here = {name: agent for name, agent in family.agents.items() if not agent.unseen}
    if family.base.unseen or not here:
        return []
    specs = [spec for spec in in_turn(family.base.specs.values()) if len(spec.shape) > 1][:LOOKED]
    try:
        base = [family.base.weights.read(middle(spec)) for spec in specs]
    except MergeError:  # the merge tells it, when it reads all
        return []
    notes: list[Note] = []
    first: dict[bytes, str] = {}
    kept: list[_Looked] = []
    shares: list[_Share] = []
    for name, agent in here.items():
        parts = _read(family, name, agent, specs, base)
        if not parts:
            continue
        notes += _foreign(agent, base, parts)
        looked = _looked(name, base, parts)
        if looked.changed.sum() < CHANGED:
            continue
        other = first.setdefault(looked.digest, name)
        if other != name:
            notes.append(_twin(agent, other, looked))
            continue
        shares += chain.from_iterable(_shares(one, looked) for one in kept)
        kept = [*kept, looked] if len(here) <= PAIRED else [looked]
    return [*notes, *_from_elsewhere(family, shares)]


def _read(family: Family, name: str, agent: Source, specs: Sequence[TensorSpec], base: Sequence[Array]) -> list[Array]:
    """The agent's samples, float32, the base's where it lacks a tensor or rules leave it out; [] if unreadable."""
    found = []
    try:
        for spec, ours in zip(specs, base, strict=True):
            if spec.name not in agent.specs or not family.reads(spec.name, name):
                found.append(as_float32(ours))
                continue
            theirs, stored = agent.weights.read(middle(agent.specs[spec.name])), agent.weights.stored(spec.name)
            if rounds(spec.dtype, stored):
                theirs = defined(middle(spec), ours, theirs, stored, np.empty(ours.size, np.float32))
            found.append(as_float32(theirs))
    except MergeError:  # the merge tells it, when it reads all
        return []
    return found


def _foreign(agent: Source, base: Sequence[Array], parts: Sequence[Array]) -> Iterator[Note]:
    """A warning where most matrices have nothing to do with the base's."""
    found = [each for pair in zip(base, parts, strict=True) if (each := _likeness(*pair)) is not None]
    if not found:
        return
    cosine, ratio = np.median(np.array(found), axis=0)
    if cosine < FOREIGN:
        yield Note(
            f"{agent.role} ({agent.text}) is hardly this base's: in samples of {len(found)} matrices the cosine of its "
            f"weights and the base's is {cosine:.2f}, and its task vector is {ratio:.2g} times as long as the base.",
            "After RL the cosine is above 0.99 and the task vector less than a tenth; such numbers are those of "
            "another base. A merge of it is noise: give the base that it was trained from, or leave it out.",
            where=agent.where,
        )


def _likeness(base: Array, values: Array) -> tuple[float, float] | None:
    """(cosine of values and base, norm of their difference / norm of base); None of too few numbers."""
    ours, theirs = (array.astype(np.float64) for array in (as_float32(base), values))
    finite = np.isfinite(ours) & np.isfinite(theirs)
    ours, theirs = ours[finite], theirs[finite]
    if min(np.count_nonzero(ours), np.count_nonzero(theirs)) < FEWEST:
        return None
    norms = np.linalg.norm(ours), np.linalg.norm(theirs)
    return float(ours @ theirs / (norms[0] * norms[1])), float(np.linalg.norm(theirs - ours) / norms[0])


def _looked(name: str, base: Sequence[Array], parts: Sequence[Array]) -> _Looked:
    values = np.concatenate(parts)
    return _Looked(name, values, values != np.concatenate([as_float32(each) for each in base]))


def _twin(agent: Source, other: str, looked: _Looked) -> Note:
    return Note(
        f"{agent.role} ({agent.text}) and agent '{other}' are the same in all {looked.values.size:,} sampled elements, "
        f"of which {looked.changed.sum():,} differ from the base.",
        "One checkpoint under two names? Leave one out: both count twice, and all that they changed counts as shared.",
        where=agent.where,
    )


def _shares(one: _Looked, two: _Looked) -> Iterator[_Share]:
    equal = int((one.changed & (one.values == two.values)).sum())
    yield _Share(one.name, two.name, equal / int(one.changed.sum()))
    yield _Share(two.name, one.name, equal / int(two.changed.sum()))


def _from_elsewhere(family: Family, shares: Sequence[_Share]) -> Iterator[Note]:
    """A warning of the agent whose changes the others have most, where any has most of them."""
    if max((each.share for each in shares), default=0.0) < SHARED:
        return
    means = {of: float(np.mean([each.share for each in shares if each.of == of])) for of in {s.of for s in shares}}
    whose = max(sorted(s.of for s in shares if s.share >= SHARED), key=means.__getitem__)
    told = [f"{each.has} {each.share:.0%}" for each in shares if each.of == whose]
    dtypes = {spec.dtype for spec in family.base.specs.values()}
    wide = " (in bfloat16, if they were trained in that)" if dtypes & {"F32", "F64"} else ""
    yield Note(
        f"agents share changes to the bit: of what {whose} changed in samples, the others have the same number in "
        f"{shortened(told)}.",
        f"Agents that were trained apart from this base hardly do. Is {role_of(whose)} the base, and this base an "
        "agent (swapped)? Else they descend from a checkpoint closer than this base, for example after a supervised "
        f"cold start: give that one as the base{wide}. Or two are checkpoints of one run: leave one out.",
        where=family.base.where,
    )
