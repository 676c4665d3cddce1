"""What will be done, decided from headers and configs alone: a value. Reads no tensor."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from agentmerge.alike.alignment import Alignment, align
from agentmerge.alike.tokens import content_of
from agentmerge.engine.rules import Decision, Rules
from agentmerge.errors import AlignmentError, Note, RecipeError, Role, Where
from agentmerge.files.layout import Layout, Place, plan_layout
from agentmerge.recipe import OUTPUT_DTYPES
from agentmerge.sidefiles.copied import read_config
from agentmerge.survey.ties import HeadDiffers
from agentmerge.tensors import DTYPES, MERGEABLE, Cast, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentmerge.alike.chain import Prepared
    from agentmerge.alike.heads import Tie
    from agentmerge.methods.base import MergeMethod
    from agentmerge.recipe import Recipe
    from agentmerge.sources.folder import Opened
    from agentmerge.survey.statistic import Statistic

IMPORTANCE, AS_STORED = "importance", "as stored"
"""What may be read beside the weights: for a method, and to compare a head with its embedding."""


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor of one source, a row of a stack."""

    source: str
    """"base" or an agent's name, with "importance/" or "as stored/" before it where that is meant."""
    tensor: TensorSpec
    """As that source stores it."""


_NO_CAST = Cast("F32")


@dataclass(frozen=True, slots=True)
class Job:
    """What happens to one tensor: it is merged, copied, or only compared with another one."""

    name: str
    """Tells the job from the others of its plan: the tensor's name, where it is not only compared."""
    tensor: TensorSpec
    """As the base stores it."""
    rows: tuple[Row, ...]
    """What is read."""
    agents: tuple[int, ...] = ()
    """The row of each agent of the stack; 0, the base's, for one that counts as unchanged here."""
    importance: tuple[int, ...] = ()
    """The row of each agent's importance; 0 for one that has none."""
    places: tuple[Place, ...] = ()
    """Where the result goes: one place, or two where the output head is tied to the embedding; none in a comparison."""
    cast: Cast = _NO_CAST
    method: MergeMethod | None = None
    """None: the tensor is copied, or compared."""
    taken_from: str = "base"
    """For a copy: "base" or an agent's name."""
    absent: frozenset[str] = frozenset()
    """Agents that count as unchanged here."""
    reason: str = ""
    """Why it is copied; "" where it is merged."""
    asks: tuple[Statistic[Any], ...] = ()
    """What a comparison asks of its stack."""

    @property
    def whole(self) -> bool:
        """Whether the method must see the tensor whole."""
        return self.method is not None and self.method.reach_of(self.tensor) == "tensor"

    def bytes_read(self, elements: int) -> int:
        """Bytes that so many elements take in all the rows."""
        return elements * sum(DTYPES[row.tensor.dtype].itemsize for row in self.rows)


@dataclass(frozen=True)
class Plan:
    """A job per tensor over the sources of a recipe, and the layout of the output."""

    recipe: Recipe
    family: Prepared
    """The sources, open, under the base's names and shapes."""
    importance: Mapping[str, Opened]
    """By agent, where the method reads it."""
    jobs: tuple[Job, ...]
    """In the order of the base's files."""
    comparisons: tuple[Job, ...]
    """What must be equal, which only the data shows."""
    layout: Layout
    alignment: Alignment
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
    def sources(self) -> dict[str, Opened]:
        """Everything that is read, by the name that rows have for it."""
        found = {"base": self.family.base, **self.family.agents}
        found |= {f"{IMPORTANCE}/{name}": source for name, source in self.importance.items()}
        return found | {f"{AS_STORED}/{_name_in(tie)}": tie.source for tie in self.family.ties}

    @cached_property
    def merged(self) -> tuple[Job, ...]:
        """The jobs that a method works on, and that every count is over."""
        return tuple(job for job in self.jobs if job.method is not None)

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

    @property
    def elements(self) -> int:
        """Merged elements; a tied head counts once."""
        return sum(job.tensor.elements for job in self.merged)

    @property
    def scope_id(self) -> str:
        """Tells which elements of which agents are counted: a saved survey is of use for the same scope only."""
        agents = [f"{name}\t{weight!r}" for name, weight in zip(self.names, self.weights, strict=True)]
        lines = [f"{job.tensor.name}\t{job.tensor.shape}\t{sorted(job.absent)}" for job in self.merged]
        return sha256("\n".join([*agents, *lines]).encode()).hexdigest()

    def identities(self) -> dict[str, Any]:
        """What tells the sources from others, by "base" and agent names, as JSON data."""
        main = {"base": self.family.base, **self.family.agents}
        found = {n: {"source": s.source, **s.identity(), **self._beside(s)} for n, s in main.items()}
        extra = self.importance.items()
        return found | {f"{n}.{IMPORTANCE}": {"source": s.source, **s.identity()} for n, s in extra}

    def restat(self) -> None:
        """Raise SourceError where a source's file changed since it was opened."""
        for source in self.sources.values():
            source.restat()

    def _beside(self, source: Opened) -> dict[str, str]:
        """What decides beside the headers how a source is read: its config and, where rows are added, its tokens."""
        config = json.dumps(read_config(source.folder), sort_keys=True)
        found = {"config_sha256": sha256(config.encode()).hexdigest()}
        if self.recipe.inputs.vocab == "union":
            found["tokenizer_sha256"] = content_of(source.folder).hex()
        return found


def plan_of(recipe: Recipe, family: Prepared, importance: Mapping[str, Opened]) -> Plan:
    """Decide everything that headers and configs can decide.

    Args:
        recipe: what to do.
        family: its sources under the base's names and shapes.
        importance: by agent, seen as the agents are; {} where the method reads none.

    Raises:
        MergeError: what headers, configs and the recipe show to be wrong.
    """
    inputs, rules = recipe.inputs, Rules(recipe)
    decisions = {name: rules.decide(name) for name in family.base.specs}
    alignment = align(
        family.base,
        family.agents,
        missing_allowed=inputs.missing == "base",
        extra_allowed=inputs.extra == "ignore",
        excused=_unread(decisions, recipe.agent_names),
        hints=family.hints,
    )
    layout = plan_layout(_output_specs(recipe, family), int(recipe.output.shard_size), family.base.metadata)
    draft = _Draft(recipe, family, importance, alignment, layout)
    head = family.tied.head if family.tied is not None else None
    jobs = tuple(draft.job(spec, decisions[spec.name]) for spec in alignment.specs if spec.name != head)
    if not any(job.tensor.elements for job in jobs if job.method is not None):
        raise RecipeError(
            "nothing to merge: the rules take every tensor from one source, or the base has no "
            f"{', '.join(sorted(MERGEABLE))} tensor that holds an element",
            todo="Check base and rules.",
        )
    notes = (
        *(Note(f"rule {rule!r} matches no tensor") for rule in rules.unused()),
        *_notes(family, alignment, decisions),
    )
    comparisons = tuple(map(_comparison, family.ties))
    return Plan(recipe, family, importance, jobs, comparisons, layout, alignment, notes)


def varied(plan: Plan, recipe: Recipe) -> Plan:
    """The plan of a recipe that differs in the method's settings alone: it shares the open sources.

    Raises:
        MergeError: what the other settings make impossible.
    """
    if recipe.method.reads != plan.recipe.method.reads:
        raise RecipeError("method: all recipes of one pass must read the same, weights alone or importance too.")
    other = plan_of(recipe, plan.family, plan.importance)
    if [job.whole for job in other.jobs] != [job.whole for job in plan.jobs]:
        raise RecipeError(
            "method: all recipes of one pass must see the same tensors whole, found one that sees others in blocks",
            todo="Merge them one by one.",
        )
    return other


def reader_of(recipe: Recipe) -> Callable[[str, str], bool]:
    """Whether any job reads a tensor of an agent, by the recipe's rules."""
    rules = Rules(recipe)

    def reads(tensor: str, agent: str) -> bool:
        decision = rules.decide(tensor)
        return agent not in decision.skip and decision.take in (None, agent)

    return reads


@dataclass(frozen=True)
class _Draft:
    """What every job of a plan is made from."""

    recipe: Recipe
    family: Prepared
    importance: Mapping[str, Opened]
    alignment: Alignment
    layout: Layout

    def job(self, spec: TensorSpec, decision: Decision) -> Job:
        """The job of one tensor of the base."""
        tied, place = self.family.tied, self.layout.places[spec.name]
        both = tied is not None and spec.name == tied.embedding
        merged = decision.take is None and spec.dtype in MERGEABLE
        absent = self.alignment.lacking.get(spec.name, frozenset()) | decision.skip
        if decision.take is not None:
            absent |= set(self.recipe.agent_names) - {decision.take}
        job = Job(
            name=spec.name,
            tensor=spec,
            rows=(Row("base", spec),),
            places=(place, self.layout.places[tied.head]) if both and tied is not None else (place,),
            cast=Cast(place.spec.dtype, self.recipe.output.rounding, self.recipe.seed),
            method=decision.method if merged else None,
            taken_from="base" if decision.take is None or decision.take in absent else decision.take,
            absent=absent,
            reason="" if merged else decision.reason or f"{spec.dtype} tensors are not merged",
        )
        return self._with_rows(job)

    def _with_rows(self, job: Job) -> Job:
        """The same with all that is read: of a copied float tensor one source, of everything else all."""
        if job.method is None and job.tensor.dtype in MERGEABLE:
            return replace(job, rows=(self._row(job.taken_from, job),))
        present = [name for name in self.recipe.agent_names if name not in job.absent]
        rows = [job.rows[0], *(self._row(name, job) for name in present)]
        agents = tuple(present.index(name) + 1 if name in present else 0 for name in self.recipe.agent_names)
        if job.method is None or not self.importance:
            return replace(job, rows=tuple(rows), agents=agents)
        rows += [self._importance_row(name, job) for name in present]
        importance = tuple(i + len(present) if i else 0 for i in agents)
        return replace(job, rows=tuple(rows), agents=agents, importance=importance)

    def _row(self, source: str, job: Job) -> Row:
        opened = self.family.base if source == "base" else self.family.agents[source]
        return Row(source, opened.specs[job.tensor.name])

    def _importance_row(self, name: str, job: Job) -> Row:
        source, wanted = self.importance[name], job.tensor
        spec = source.specs.get(wanted.name)
        if spec is None or spec.shape != wanted.shape:
            what = "no such tensor" if spec is None else f"shape {list(spec.shape)}"
            raise AlignmentError(
                f"{wanted.name}: {IMPORTANCE} of agent '{name}' ({source.source}) has {what}",
                expected=f"shape {list(wanted.shape)}",
                todo="Make it again from this agent, or take this tensor from the base.",
                where=Where(Role(name), source.source, wanted.name),
            )
        return Row(f"{IMPORTANCE}/{name}", spec)


def _comparison(tie: Tie) -> Job:
    """A head that is said to be the embedding, read beside it."""
    source = f"{AS_STORED}/{_name_in(tie)}"
    embedding, head = tie.source.specs[tie.embedding], tie.source.specs[tie.head]
    return Job(
        name=f"{tie.head} of {tie.who}",
        tensor=embedding,
        rows=(Row(source, embedding), Row(source, head)),
        agents=(1,),
        asks=(HeadDiffers(),),
    )


def _name_in(tie: Tie) -> str:
    return tie.who.removeprefix("agent '").removesuffix("'")  # TODO Role


def _output_specs(recipe: Recipe, family: Prepared) -> list[TensorSpec]:
    """The base's tensors in the dtypes of the output."""
    wanted, tied = recipe.output.dtype, family.tied

    def dtype(spec: TensorSpec) -> str:
        if tied is not None and spec.name == tied.head:  # the same numbers twice, so the same dtype
            return dtype(family.base.specs[tied.embedding])
        return spec.dtype if wanted == "base" or spec.dtype not in MERGEABLE else OUTPUT_DTYPES[wanted]

    return [replace(spec, dtype=dtype(spec)) for spec in family.base.specs.values()]


def _notes(family: Prepared, alignment: Alignment, decisions: Mapping[str, Decision]) -> list[Note]:
    """What the sources and their alignment are told with."""
    notes = [Note(text) for text in family.warnings]
    for source in (family.base, *family.agents.values()):
        notes += [Note(text) for text in source.warnings]
    for agent, names in alignment.ignored.items():
        text = f"agent '{agent}': {len(names)} tensors that the base lacks are left out"
        notes.append(Note(text, where=Where(Role(agent))))
    tied = family.tied
    if tied is not None and decisions[tied.head] != decisions[tied.embedding]:
        notes.append(Note(f"{tied.head} is tied to {tied.embedding}: the rules of the latter hold"))
    return notes


def _unread(decisions: Mapping[str, Decision], names: tuple[str, ...]) -> set[tuple[str, str]]:
    """(tensor, agent) pairs that no job reads: skipped ones, and all but the taken one."""
    return {
        (tensor, name)
        for tensor, decision in decisions.items()
        for name in names
        if name in decision.skip or (decision.take is not None and decision.take != name)
    }
