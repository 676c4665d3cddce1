"""What was packed or applied, as typed JSON."""

from __future__ import annotations

from agentmerge.frozen import Frozen, Record


class FormCount(Frozen):
    """The tensors of one form."""

    tensors: int
    nbytes: int
    """Of their entries in the file."""


class PackRecord(Record):
    """What a packed delta holds."""

    format: str = "agentmerge.pack/1"
    base: str
    agent: str
    nbytes: int
    """Of the file."""
    full: int
    """Bytes of the agent's tensors as they are stored in full."""
    elements: int
    changed: int
    """Elements whose bits differ from the base's, and all of tensors that the base lacks."""
    forms: dict[str, FormCount]
    """By form: same, indices, bitmap, whole."""
    without_base: list[str]
    """Tensors kept whole as the base has none of that name, dtype and shape."""
    lacking: list[str]
    """Tensors of the base that the agent does not have."""
    files: list[str]
    """Beside the weights, that differ from the base's and are kept."""
    left: list[str]
    """In the agent's folder, that are not kept."""
    same_files: bool
    """Whether apply gives back the agent's files byte for byte; else its tensors, in files of our own making."""
    warnings: list[str]
    seconds: float


class ApplyRecord(Record):
    """What was made of a base and a delta."""

    format: str = "agentmerge.apply/1"
    base: str
    delta: str
    nbytes: int
    """Of the weight files."""
    files: list[str]
    """Weight files, then those beside them."""
    same_files: bool
    """Whether they are the agent's byte for byte; else its tensors, in files of our own making."""
    warnings: list[str]
    seconds: float


class JoinRecord(Record):
    """What was made of several packed deltas."""

    format: str = "agentmerge.join/1"
    base: str
    """The name of the base that they lie over."""
    agents: dict[str, str]
    nbytes: int
    """Of the file."""
    elements: int
    changed: dict[str, int]
    """By agent, elements whose bits differ from the base's; no two agents changed the same."""
    seconds: float
