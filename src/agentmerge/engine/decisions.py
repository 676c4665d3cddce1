"""From a recipe and its sources to a plan: everything that headers and configs decide. Reads no tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from agentmerge.alike.storage import rounds
from agentmerge.engine.plan import AS_STORED, IMPORTANCE, Job, Plan, Row, name_in
from agentmerge.engine.rules import Decision, Rules
from agentmerge.engine.verdicts import idle_notes, untied
from agentmerge.errors import AlignmentError, Note, RecipeError
from agentmerge.files.layout import Layout, plan_layout
from agentmerge.recipe import OUTPUT_DTYPES
from agentmerge.survey.ties import HeadDiffers
from agentmerge.tensors import MERGEABLE, Cast, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agentmerge.alike.alignment import Alignment
    from agentmerge.alike.family import Family
    from agentmerge.alike.heads import Tie
    from agentmerge.recipe import Recipe
    from agentmerge.sources.source import Source

MOST = 10
"""Rules that match nothing and are told by name."""


def plan_of(recipe: Recipe, family: Family, importance: Mapping[str, Source]) -> Plan:
    """Decide everything that headers and configs can decide.

    Args:
        recipe: what to do.
        family: its sources under the base's names and shapes.
        importance: by agent, seen as the agents are; {} where the method reads none.

    Raises:
        MergeError: what headers, configs and the recipe show to be wrong.
    """
    rules, alignment = Rules(recipe), family.alignment
    assert alignment is not None, "the chain ends with it"
    decisions = {name: rules.decide(name) for name in family.base.specs}
    layout = plan_layout(_output_specs(recipe, family), int(recipe.output.shard_size))
    draft = _Draft(recipe, family, importance, alignment, layout)
    head = family.tied.head if family.tied is not None else None
    jobs = tuple(draft.job(spec, decisions[spec.name]) for spec in alignment.specs if spec.name != head)
    if not any(job.tensor.elements for job in jobs if job.method is not None):
        raise RecipeError(
            "nothing to merge: the rules take every tensor from one source, or the base has no "
            f"{', '.join(sorted(MERGEABLE))} tensor that holds an element",
            todo="Check base and rules.",
        )
    notes = (*_unused(rules), *_notes(family, decisions))
    plan = Plan(recipe, family, importance, jobs, tuple(map(_comparison, family.ties)), layout, notes)
    return replace(plan, notes=(*notes, *idle_notes(plan)))


def varied(plan: Plan, recipe: Recipe) -> Plan:
    """The plan of a recipe that differs in the method's settings alone: it shares the open sources.

    Raises:
        MergeError: what the other settings make impossible.
    """
    if recipe.method.reads != plan.recipe.method.reads:
        raise RecipeError("method: all recipes of one pass must read the same, weights alone or importance too.")
    other = plan_of(recipe, plan.family, plan.importance)
    if [job.step for job in other.jobs] != [job.step for job in plan.jobs]:
        raise RecipeError(
            "method: all recipes of one pass must see the same tensors whole, found one that sees others in blocks",
            todo="Merge them one by one.",
        )
    return other


def reader_of(recipe: Recipe) -> Callable[[str, str], bool]:
    """Whether any job reads a tensor of an agent, by the recipe's rules."""
    decide = cache(Rules(recipe).decide)

    def reads(tensor: str, agent: str) -> bool:
        try:
            return decide(tensor).reads(agent)
        except RecipeError:  # of the recipe, not of this agent: `plan_of` tells it once
            return True

    return reads


@dataclass(frozen=True)
class _Draft:
    """What every job of a plan is made from."""

    recipe: Recipe
    family: Family
    importance: Mapping[str, Source]
    alignment: Alignment
    layout: Layout

    def job(self, spec: TensorSpec, decision: Decision) -> Job:
        """The job of one tensor of the base."""
        tied, place = self.family.tied, self.layout.places[spec.name]
        both = tied is not None and spec.name == tied.embedding
        merged = decision.take is None and spec.dtype in MERGEABLE
        lacking = self.alignment.lacking.get(spec.name, frozenset())
        absent = lacking | {name for name in self.recipe.agent_names if not decision.reads(name)}
        reason = decision.reason + (", which lacks it: the base's is copied" if decision.take in lacking else "")
        job = Job(
            name=spec.name,
            tensor=spec,
            rows=(Row("base", spec),),
            places=(place, self.layout.places[tied.head]) if both and tied is not None else (place,),
            cast=Cast(place.spec.dtype, self.recipe.output.rounding, self.recipe.seed),
            method=decision.method if merged else None,
            taken_from="base" if decision.take is None or decision.take in absent else decision.take,
            absent=absent,
            reason="" if merged else reason or f"{spec.dtype} tensors are not merged",
        )
        present = len(self.recipe.agent_names) - len(absent)
        return self._with_rows(job if job.method is None else replace(job, work=job.method.work(spec, present)))

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
        spec = opened.specs[job.tensor.name]
        decided = self.recipe.inputs.storage_rounding == "ignore" and job.method is not None and source != "base"
        return Row(source, spec, decided and rounds(job.tensor.dtype, opened.weights.stored(spec.name)))

    def _importance_row(self, name: str, job: Job) -> Row:
        source, wanted = self.importance[name], job.tensor
        spec = source.specs.get(wanted.name)
        if spec is None or spec.shape != wanted.shape:
            what = "no such tensor" if spec is None else f"shape {list(spec.shape)}"
            raise AlignmentError(
                f"{wanted.name}: {IMPORTANCE} of agent '{name}' ({source.text}) has {what}",
                expected=f"shape {list(wanted.shape)}",
                todo="Make it again from this agent, or take this tensor from the base.",
                where=replace(source.where, tensor=wanted.name),
            )
        return Row(f"{IMPORTANCE}/{name}", spec)


def _comparison(tie: Tie) -> Job:
    """A head that is said to be the embedding, read beside it."""
    source = f"{AS_STORED}/{name_in(tie)}"
    embedding, head = (tie.source.specs[name] for name in (tie.pair.embedding, tie.pair.head))
    if embedding.shape != head.shape:
        raise untied(tie.source, embedding.name, head.name)
    return Job(
        name=f"{head.name} of {tie.source.role}",
        tensor=embedding,
        rows=(Row(source, embedding), Row(source, head)),
        agents=(1,),
        asks=(HeadDiffers(),),
    )


def _output_specs(recipe: Recipe, family: Family) -> list[TensorSpec]:
    """The base's tensors in the dtypes of the output."""
    wanted, tied = recipe.output.dtype, family.tied

    def dtype(spec: TensorSpec) -> str:
        if tied is not None and spec.name == tied.head:  # the same numbers twice, so the same dtype
            return dtype(family.base.specs[tied.embedding])
        return spec.dtype if wanted == "base" or spec.dtype not in MERGEABLE else OUTPUT_DTYPES[wanted]

    return [replace(spec, dtype=dtype(spec)) for spec in family.base.specs.values()]


def _unused(rules: Rules) -> Iterator[Note]:
    """Rules that matched nothing, the first of many by name."""
    unused = rules.unused()
    yield from (Note(f"rule {rule!r} matches no tensor") for rule in unused[:MOST])
    if len(unused) > MOST:
        yield Note(f"{len(unused) - MOST:,} more rules match no tensor")


def _notes(family: Family, decisions: Mapping[str, Decision]) -> list[Note]:
    """What the sources are told with."""
    notes = list(family.notes)
    for source in (family.base, *family.agents.values()):
        notes += source.notes
    tied = family.tied
    if tied is not None and decisions[tied.head] != decisions[tied.embedding]:
        notes.append(Note(f"{tied.head} is tied to {tied.embedding}: the rules of the latter hold"))
    return notes
