"""What will be done, decided from headers and configs alone: a value. Reads no tensor."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import lcm, prod
from typing import TYPE_CHECKING, Any

from agentmerge.alike.tokens import content_of
from agentmerge.methods.base import Work
from agentmerge.tensors import DTYPES, LEAF, Block, Cast, Reach, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.alike.family import Family
    from agentmerge.alike.heads import Tie
    from agentmerge.errors import Note
    from agentmerge.files.layout import Layout, Place
    from agentmerge.methods.base import Beside, MergeMethod
    from agentmerge.recipe import Recipe
    from agentmerge.sources.source import Source
    from agentmerge.survey.statistic import Statistic

AS_STORED = "as stored"
"""What is read beside the weights to compare a head with its embedding."""


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor of one source, a row of a stack."""

    source: str
    """"base", "onto" or an agent's name; with what is meant before it, "importance/", "grams/", "keep/" (of the base)
    or "as stored/", where that is not the weights."""
    tensor: TensorSpec
    """As that source has it read."""
    whole: bool = False
    """Whether it has a shape of its own and is read whole, whatever the block."""
    rounds: bool = False
    """Whether its numbers may differ from the base's by how they are stored alone, and are restored (alike.storage)."""

    @property
    def words(self) -> str:
        """What is beside the weights as a sentence has it: "grams of agent 'code'", or "keep", which is the base's."""
        kind, _, name = self.source.partition("/")
        return kind if name == "base" else f"{kind} of agent '{name}'"

    def read_for(self, block: Block) -> Block:
        """What is read of it for a block of its job."""
        low, high = (0, self.tensor.elements) if self.whole else (block.start, block.stop)
        return Block(self.tensor, low, high)


_NO_CAST, _NO_WORK = Cast("F32"), Work()


@dataclass(frozen=True, slots=True)
class Job:
    """What happens to one tensor: it is merged, copied, or only compared with another one."""

    name: str
    """Tells the job from the others of its plan: the tensor's name, where it is not only compared."""
    tensor: TensorSpec
    """As the base stores it."""
    rows: tuple[Row, ...]
    """What is read."""
    onto: Row | None = None
    """What is read beside these where results are written: whose numbers what is merged changes, or is copied from.
    None: the base's."""
    agents: tuple[int, ...] = ()
    """The row of each agent of the stack; 0, the base's, for one that counts as unchanged here."""
    importance: tuple[int, ...] = ()
    """The row of each agent's importance; 0 for one that has none."""
    grams: tuple[int, ...] = ()
    """The row of each agent's Gram matrix; 0 for one that has none."""
    keep: int = 0
    """The row of the base's Gram matrix of what it must keep; 0 where there is none."""
    places: tuple[Place, ...] = ()
    """Where the result goes: one place, or two where the output head is tied to the embedding; none in a comparison."""
    cast: Cast = _NO_CAST
    method: MergeMethod | None = None
    """None: the tensor is copied, or compared."""
    work: Work = _NO_WORK
    """What merging it takes."""
    taken_from: str = "base"
    """For a copy: "base", "onto" or an agent's name."""
    absent: frozenset[str] = frozenset()
    """Agents that count as unchanged here."""
    reason: str = ""
    """Why it is copied; "" where it is merged."""
    asks: tuple[Statistic[Any], ...] = ()
    """What a comparison asks of its stack."""

    @property
    def step(self) -> int:
        """Elements of which every block but a tensor's last has a multiple: leaves, whole rows or matrices, or all."""
        return self.step_of(self.work.reach)

    def step_of(self, reach: Reach) -> int:
        """The same for what reaches so far."""
        if reach == "element":
            return LEAF
        if reach == "row":
            return self.tensor.rows_and_leaves
        return lcm(prod(self.tensor.shape if reach == "tensor" else self.tensor.shape[-2:]), LEAF) or LEAF

    def read(self, *, writing: bool) -> tuple[Row, ...]:
        """The rows that a pass reads: `rows`, and behind them what only one that writes needs."""
        return (*self.rows, self.onto) if writing and self.onto is not None else self.rows

    def bytes_read(self, elements: int) -> int:
        """Bytes that so many elements take in all the rows, and what is read whole with them."""
        itemsizes = sum(DTYPES[row.tensor.dtype].itemsize for row in self.read(writing=True) if not row.whole)
        return elements * itemsizes + self.bytes_whole

    @property
    def bytes_whole(self) -> int:
        """Bytes of the rows that are read whole."""
        return sum(row.tensor.nbytes for row in self.rows if row.whole)


@dataclass(frozen=True)
class Plan:
    """A job per tensor over the sources of a recipe, and the layout of the output."""

    recipe: Recipe
    family: Family
    """The sources, open, under the base's names and shapes."""
    beside: Mapping[Beside, Mapping[str, Source]]
    """What the method reads beside the weights, by agent, or "base"."""
    jobs: tuple[Job, ...]
    """In the order of the base's files."""
    comparisons: tuple[Job, ...]
    """What must be equal, which only the data shows."""
    layout: Layout
    notes: tuple[Note, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The agents', in the order of every sum."""
        return self.recipe.agent_names

    @cached_property
    def weights(self) -> tuple[float, ...]:
        """The agents', in the order of their names."""
        return tuple(self.recipe.agents[name].weight for name in self.names)

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Everything that is read, by the name that rows have for it."""
        found = dict(self._main)
        found |= {f"{kind}/{name}": source for kind, by in self.beside.items() for name, source in by.items()}
        return found | {f"{AS_STORED}/{name_in(tie)}": tie.source for tie in self.family.ties}

    @property
    def opened(self) -> tuple[Source, ...]:
        """Every source once: base, what the merge is put onto, agents, and what lies beside them."""
        return (*self._main.values(), *self._lying_beside)

    @property
    def _lying_beside(self) -> tuple[Source, ...]:
        return tuple(source for by in self.beside.values() for source in by.values())

    @cached_property
    def merged(self) -> tuple[Job, ...]:
        """The jobs that a method works on, and that every count is over."""
        return tuple(job for job in self.jobs if job.method is not None)

    @cached_property
    def idle(self) -> tuple[str, ...]:
        """The agents that take part in no merged tensor."""
        return tuple(name for name in self.names if all(name in job.absent for job in self.merged))

    @cached_property
    def methods(self) -> tuple[MergeMethod, ...]:
        """The recipe's method, then every variation of it that a rule asks for."""
        found = (self.recipe.method, *(job.method for job in self.merged if job.method is not None))
        return tuple(dict.fromkeys(found))

    def job(self, name: str) -> Job:
        """The job of this name."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Job]:
        return {job.name: job for job in self.jobs}

    @cached_property
    def rounding(self) -> tuple[str, ...]:
        """The agents of which some tensor is restored."""
        rows = {row.source for job in self.merged for row in job.rows if row.rounds}
        return tuple(name for name in self.names if name in rows)

    @property
    def elements(self) -> int:
        """Merged elements; a tied head counts once."""
        return sum(job.tensor.elements for job in self.merged)

    @property
    def scope_id(self) -> str:
        """Tells which elements of which agents are counted: a saved survey is of use for the same scope only."""
        agents = [f"{name}\t{weight!r}" for name, weight in zip(self.names, self.weights, strict=True)]
        lines = [f"{job.tensor.name}\t{job.tensor.shape}\t{sorted(job.absent)}" for job in self.merged]
        restored = [f"{j.name}\t{r.source} restored" for j in self.merged for r in j.rows if r.rounds]
        return sha256("\n".join([*agents, *lines, *restored]).encode()).hexdigest()

    def identities(self) -> dict[str, Any]:
        """What tells the sources from others, by their roles' names, as JSON data."""
        found = {n: {**s.told, **self._beside[n]} for n, s in self._main.items()}
        return found | {source.role.name: source.told for source in self._lying_beside if source.role is not None}

    def restat(self) -> None:
        """Raise SourceError where a source's file changed since it was opened."""
        for source in self.sources.values():
            source.identity.restat()

    @cached_property
    def _main(self) -> dict[str, Source]:
        """The checkpoints themselves, by the names that a recipe has for them."""
        family = self.family
        return {"base": family.base, **({} if family.onto is None else {"onto": family.onto}), **family.agents}

    @cached_property
    def _beside(self) -> dict[str, dict[str, str]]:
        """What decides beside the headers how a source is read: its config and, where rows are added, its tokens."""
        configs, folders = self.family.configs, self.family.folders
        texts = {name: json.dumps(configs[name], sort_keys=True) for name in self._main}
        found = {name: {"config_sha256": sha256(text.encode()).hexdigest()} for name, text in texts.items()}
        if self.recipe.inputs.vocab == "union":
            found = {n: {**of, "tokenizer_sha256": content_of(folders[n]).hex()} for n, of in found.items()}
        return found


def name_in(tie: Tie) -> str:
    """The name of a tie's source in rows: "base" or an agent's."""
    return "base" if tie.source.role is None else tie.source.role.name
