"""What was packed or applied, as typed JSON."""

from __future__ import annotations

from typing import Literal

from agentmerge.frozen import Frozen, Record
from agentmerge.record import MergeRecord  # noqa: TC001 - pydantic reads it at run time


class FormCount(Frozen):
    """The tensors of one form."""

    tensors: int
    nbytes: int
    """Of their entries in the file."""


class Held(Record):
    """What a packed delta holds."""

    format: str = ""
    nbytes: int
    """Of the file."""
    full: int
    """Bytes of the agent's tensors as they are stored in full."""
    elements: int
    changed: int
    """Elements whose bits differ from the base's, and `uncompared`."""
    uncompared: int
    """Elements of tensors that are kept whole as the base has none of that name, dtype and shape to compare with."""
    forms: dict[str, FormCount]
    """By form: same, indices, bitmap, whole."""
    without_base: list[str]
    """Tensors kept whole as the base has none of that name, dtype and shape."""
    unlike: list[str]
    """Those of them that the base has in another dtype or shape."""
    lacking: list[str]
    """Tensors of the base that the agent does not have."""
    files: list[str]
    """Beside the weights, that differ from the base's and are kept."""
    same_files: bool
    """Whether apply gives back the agent's files byte for byte; else its tensors, in files of our own making."""


class PackRecord(Held):
    """What was packed."""

    format: str = "agentmerge.pack/1"
    base: str
    agent: str
    left: list[str]
    """In the agent's folder, that are not kept."""
    warnings: list[str]
    seconds: float


class DeltaTensor(Frozen):
    """One tensor of a packed delta."""

    name: str
    dtype: str
    shape: list[int]
    form: str
    """same, indices, bitmap or whole."""
    elements: int
    changed: int
    nbytes: int
    """Of its entries in the file."""


class DeltaRecord(Held):
    """What a packed delta says of itself, read without the base."""

    format: str = "agentmerge.delta/1"
    delta: str
    commit: str | None
    """Of the hub; null of a file that lies here."""
    version: int
    """Of the format."""
    density: float
    """changed / elements; 0 where there are none."""
    base: str
    """What its base was called."""
    base_print: str
    """Fingerprint of the base's tensors that the agent has, 16 hexadecimal digits."""
    agent_print: str
    """Of the agent's own tensors."""
    sample: str
    """Hash of a sample of the base's numbers."""
    over: str | None
    """The base that it was compared with, and fits; null where none was given."""
    compared: Literal["numbers", "headers"] | None
    """What of that base was here to be compared: a sample of its numbers, or names, dtypes and shapes alone."""
    same_as_base: list[str]
    """Files beside the weights that are the base's own."""
    tensors: list[DeltaTensor]
    merge: MergeRecord | None
    """Of a merge that was packed: what it did."""


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
