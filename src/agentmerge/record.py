"""What was done, and what was seen, as typed JSON that can be read back."""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pydantic import Field, ValidationError

from agentmerge.analysis.rows import Findings  # noqa: TC001 - pydantic reads it at run time
from agentmerge.errors import SurveyError, Where, shortened
from agentmerge.files.documents import whole_number
from agentmerge.files.paths import expanded
from agentmerge.files.staging import replace_file
from agentmerge.frozen import Frozen, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from agentmerge.survey.overlap import OverlapCounts
    from agentmerge.survey.rounding import RoundingCounts

RECORD = "merge_record.json"
R = TypeVar("R", bound=Frozen)


class AgentOverlap(Frozen):
    """One agent's task vector against the others'."""

    changed: int
    """Elements with |tau| > threshold."""
    density: float
    """changed / elements."""
    unique: int
    """Changed by this agent alone."""
    shared: int
    """Changed by this agent and at least one other."""
    overlap_unique_ratio: float | None
    """rho = shared / unique; null where nothing is unique (infinite)."""
    scale: float | None
    """lambda, by which unique elements are multiplied; null where the method has no one number per agent, or it is not
    finite."""
    changed_by_exactly: list[int]
    """Of this agent's changed elements, those that exactly 1, 2, 3 ... agents changed."""
    storage_rounding: int | None = None
    """Elements that differ from the base by the agent's dtype alone and count as unchanged; null where none can."""


class SurveySummary(Record):
    """Counts over all merged elements; a tied head counts once."""

    elements: int
    threshold: float
    agents: dict[str, AgentOverlap]

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        counts: OverlapCounts,
        scales: Sequence[float] | None,
        threshold: float,
        restored: Mapping[str, int],
    ) -> Self:
        """Put counts and scales in words.

        Args:
            names: in the counts' order.
            counts: over all merged elements.
            scales: of the agents; None where there is no one number for each.
            threshold: of a change.
            restored: of the agents that store numbers more coarsely than the base, the answers of `Restored`.
        """
        agents = {}
        for t, name in enumerate(names):
            ratio = counts.ratio[t]
            agents[name] = AgentOverlap(
                changed=counts.changed[t],
                density=counts.density[t],
                unique=counts.unique[t],
                shared=counts.shared[t],
                overlap_unique_ratio=None if ratio == float("inf") else ratio,
                scale=scales[t] if scales is not None and isfinite(scales[t]) else None,
                changed_by_exactly=counts.exactly[t].tolist(),
                storage_rounding=restored.get(name),
            )
        return cls(elements=counts.elements, threshold=threshold, agents=agents)

    def rows(self) -> list[dict[str, Any]]:
        """A row per agent for a table, its name first."""
        return [{"agent": name, **agent.model_dump()} for name, agent in self.agents.items()]


class AgentRounding(Frozen):
    """What became of one agent's changes; each a share, null where there was nothing to share."""

    changed_lost: float | None
    """Of the changed elements: merged to something else than the base, but stored as the base's number."""
    below_threshold: float | None
    """Of the elements whose bits differ from the base's: not beyond the threshold, so not merged."""
    rescale_survived: float | None
    """Of the unique elements: stored as another number than the agent's own value; null where scale and weight
    are 1."""

    @classmethod
    def of(cls, t: int, overlap: OverlapCounts, rounding: RoundingCounts, *, rescaled: bool) -> Self:
        """The shares of agent number t."""
        changed, different = overlap.changed[t], int(overlap.different[t])
        return cls(
            changed_lost=_share(int(rounding.lost[t]), int(rounding.changed[t])),
            below_threshold=_share(different - changed, different),
            rescale_survived=_share(int(rounding.survived[t]), int(rounding.unique[t])) if rescaled else None,
        )


class AgentRetention(Frozen):
    """<stored - base, tau> / <tau, tau> over the elements that one agent changed; null where there are none."""

    unique: float | None
    shared: float | None
    changed: float | None
    """Both together."""


class CopiedTensor(Frozen):
    """A tensor that no method worked on."""

    name: str
    reason: str


class Tensors(Record):
    """How many tensors were merged, and which were copied and why."""

    merged: int
    copied: list[CopiedTensor] = Field(default_factory=list)
    missing: dict[str, list[str]] = Field(default_factory=dict)
    """By agent, the base's tensors that it lacks and counts as unchanged in."""
    left_out: dict[str, list[str]] = Field(default_factory=dict)
    """By agent, its tensors that the base lacks."""


class OutputFacts(Frozen):
    """What was written."""

    dtype: str
    """The dtype that most elements have, in the config's spelling."""
    rounding: str
    shards: int
    bytes: int
    """Of all weight files."""


class MergeTiming(Frozen):
    """How long a merge took, and what was read; two merges of the same bytes differ in nothing else."""

    fold_seconds: float
    """Until the method asked no more."""
    map_seconds: float
    folds: int
    """Passes over the inputs before the one that writes."""
    outputs: int = 1
    """Merges that shared these passes."""
    bytes_read: int
    """In one pass."""


class ProbeTiming(Frozen):
    """How long a probe took, and what was read."""

    seconds: float
    bytes_read: int


class MergeRecord(Record):
    """merge_record.json: everything that was done. `Recipe.parse(record.recipe)` does it again.

    The recipe and the sources are plain data, so that a record can be read where the method's plug-in is not installed.
    """

    format: str = "agentmerge.record/1"
    recipe: dict[str, Any]
    versions: dict[str, str]
    sources: dict[str, dict[str, Any]]
    """By "base", "onto", "keep" and the agents' names ("code.grams" for what lies beside one): what the user wrote, and
    what tells this source from another."""
    survey: SurveySummary
    rounding: dict[str, AgentRounding]
    learned: dict[str, Any] = Field(default_factory=dict)
    """What the method found out about the agents; see its `learned`."""
    retention: dict[str, AgentRetention] | None = None
    """What the stored merge keeps of each agent; with `--report`."""
    findings: Findings | None = None
    """What a full probe shows; with `--report`."""
    tensors: Tensors
    output: OutputFacts
    warnings: list[str]
    timing: MergeTiming

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read the record of a merged checkpoint's folder.

        Raises:
            SurveyError: there is none, or it can't be read.
        """
        return _load(cls, expanded(folder) / RECORD, _no_merge)

    def dump(self) -> bytes:
        """The file's content."""
        return (self.model_dump_json(indent=2) + "\n").encode()

    def rows(self) -> list[dict[str, Any]]:
        """A row per agent for a table, such as `pandas.DataFrame(record.rows())`: counts, rounding and retention."""
        kept = self.retention or {}
        return [
            row
            | self.rounding[row["agent"]].model_dump()
            | {f"retention_{name}": share for name, share in kept.get(row["agent"], ())}
            for row in self.survey.rows()
        ]


class ProbeRecord(Record):
    """What a probe saw, and all its answers: `merge --survey FILE` goes on from here."""

    format: str = "agentmerge.survey/1"
    method: dict[str, Any]
    sources: dict[str, dict[str, Any]]
    scope: str
    """Which elements of which agents were counted."""
    survey: SurveySummary
    findings: Findings | None = None
    """What a full probe found, in rows: each list loads as a table."""
    answers: dict[str, Any]
    """By statistic: the total, and per tensor."""
    warnings: list[str]
    timing: ProbeTiming

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read what `save` wrote.

        Raises:
            SurveyError: it is not there, or can't be read.
        """
        return _load(cls, expanded(path), _no_survey)

    def rows(self) -> list[dict[str, Any]]:
        """A row per agent for a table, such as `pandas.DataFrame(record.rows())`."""
        return self.survey.rows()

    def save(self, path: Path | str) -> None:
        """Write it as JSON; a survey that was there stays until the new one is whole. OutputError where it can't be."""
        replace_file(expanded(path), (self.model_dump_json(indent=1) + "\n").encode())


def _no_merge(path: Path) -> SurveyError:
    """Why there is no record at a path."""
    folder, where = path.parent, Where(path=str(path))
    if not folder.is_dir():
        found = f"{folder}: {'is a file' if folder.exists() else 'no such folder'}"
        return SurveyError(found, expected="a folder that agentmerge wrote", where=where)
    inner = sorted(one.parent.name for one in folder.glob(f"*/{RECORD}"))
    todo = f"It holds merges: {shortened(inner)}." if inner else ""
    return SurveyError(f"{folder}: not written by agentmerge, as it holds no {RECORD}", todo=todo, where=where)


def _no_survey(path: Path) -> SurveyError:
    return SurveyError(f"{path}: no such file", expected="a ProbeRecord", where=Where(path=str(path)))


def _load(kind: type[R], path: Path, absent: Callable[[Path], SurveyError]) -> R:
    try:
        return parsed(kind, path.read_bytes(), str(path))
    except (FileNotFoundError, NotADirectoryError):
        raise absent(path) from None
    except OSError as error:
        raise SurveyError(f"{path}: can't be read: {error}.", where=Where(path=str(path))) from None


def parsed(kind: type[R], raw: bytes, path: str) -> R:
    """What the bytes of a record's file say; SurveyError, which names the path, where they are none."""
    try:
        return kind.model_validate(json.loads(raw, parse_int=whole_number))
    except ValidationError as error:
        first = error.errors()[0]
        found = f"not a {kind.__name__}: {'.'.join(map(str, first['loc']))}: {first['msg']}."
    except (ValueError, RecursionError) as error:
        found = f"can't be read as a {kind.__name__}: {error}."
    raise SurveyError(f"{path}: {found}", where=Where(path=path))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
