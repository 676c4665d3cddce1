"""From a recipe and its sources to a plan: everything that headers and configs decide. Reads no tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from agentmerge.alike.fused import fused_experts
from agentmerge.alike.heads import untied
from agentmerge.alike.storage import rounds
from agentmerge.engine.matrices import matrix_notes
from agentmerge.engine.plan import AS_STORED, Job, Plan, Row, name_in
from agentmerge.engine.rules import Decision, Rules
from agentmerge.engine.verdicts import idle_notes
from agentmerge.errors import AlignmentError, Note, RecipeError, Where
from agentmerge.files.layout import Layout, plan_layout
from agentmerge.recipe import OUTPUT_DTYPES
from agentmerge.survey.ties import HeadDiffers
from agentmerge.tensors import MERGEABLE, Cast, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agentmerge.alike.alignment import Alignment
    from agentmerge.alike.family import Family
    from agentmerge.alike.heads import Tie
    from agentmerge.methods.base import Beside
    from agentmerge.recipe import Recipe
    from agentmerge.sources.source import Source
    from agentmerge.tensors import Experts

GRAMS = ("F64", "F32")
"""How Gram matrices may be stored."""
MOST = 10
"""Rules that match nothing and are told by name."""


def plan_of(recipe: Recipe, family: Family, beside: Mapping[Beside, Mapping[str, Source]]) -> Plan:
    """Decide everything that headers and configs can decide.

    Args:
        recipe: what to do.
        family: its sources under the base's names and shapes.
        beside: what the method reads beside the weights, by agent or "base", seen as the weights are.

    Raises:
        MergeError: what headers, configs and the recipe show to be wrong.
    """
    rules, alignment = Rules(recipe), family.alignment
    assert alignment is not None, "the chain ends with it"
    decisions = {name: rules.decide(name) for name in family.base.specs}
    _check_reads(recipe, decisions)
    layout = plan_layout(_output_specs(recipe, family), int(recipe.output.shard_size))
    experts = fused_experts(family.base.specs, family.configs.get("base", {}))
    draft = _Draft(recipe, family, beside, alignment, layout, experts)
    head = family.tied.head if family.tied is not None else None
    jobs = tuple(draft.job(spec, decisions[spec.name]) for spec in alignment.specs if spec.name != head)
    if not any(job.tensor.elements for job in jobs if job.method is not None):
        raise RecipeError(
            "nothing to merge: the rules take every tensor from one source, or the base has no "
            f"{', '.join(sorted(MERGEABLE))} tensor that holds an element",
            todo="Check base and rules.",
        )
    plan = Plan(recipe, family, beside, jobs, tuple(map(_comparison, family.ties)), layout, ())
    notes = (*_unused(rules), *_notes(plan, decisions), *_unkept(beside, jobs), *idle_notes(plan), *matrix_notes(plan))
    return replace(plan, notes=notes)


def _check_reads(recipe: Recipe, decisions: Mapping[str, Decision]) -> None:
    """A rule brings in no method that reads what the recipe's method does not: it is not opened."""
    for name, decision in decisions.items():
        method = decision.method
        if method is not None and not set(method.reads) <= set(recipe.method.reads):
            raise RecipeError(
                f"rules: the method of {name} reads {', '.join(method.reads)}, which '{recipe.method.name}' does not",
                todo="Make two merges, or let the rules vary a method that reads it.",
                where=Where(path="rules", tensor=name),
            )


def varied(plan: Plan, recipe: Recipe) -> Plan:
    """The plan of a recipe that differs in the method's settings alone: it shares the open sources.

    Raises:
        MergeError: what the other settings make impossible.
    """
    if recipe.method.reads != plan.recipe.method.reads:
        raise RecipeError(
            "method: all recipes of one pass must read the same beside the weights: importance, grams, keep or nothing."
        )
    other = plan_of(recipe, plan.family, plan.beside)
    if [_seen(job) for job in other.jobs] != [_seen(job) for job in plan.jobs]:
        raise RecipeError(
            "method: all recipes of one pass must see the same tensors whole or by rows, found one that does not",
            todo="Merge them one by one.",
        )
    return other


def _seen(job: Job) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """How a job sees its tensor, and what beside it."""
    return job.step, job.work.gram, job.work.keep


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
    beside: Mapping[Beside, Mapping[str, Source]]
    alignment: Alignment
    layout: Layout
    experts: Mapping[str, Experts]

    def job(self, spec: TensorSpec, decision: Decision) -> Job:
        """The job of one tensor of the base."""
        spec = replace(spec, experts=self.experts.get(spec.name))
        tied, place = self.family.tied, self.layout.places[spec.name]
        both = tied is not None and spec.name == tied.embedding
        merged = decision.take is None and spec.dtype in MERGEABLE
        ground = "base" if self.family.onto is None else "onto"
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
            taken_from=ground if decision.take in (None, "base") or decision.take in absent else decision.take,
            absent=absent,
            reason="" if merged else reason or f"{spec.dtype} tensors are not merged",
        )
        present = len(self.recipe.agent_names) - len(absent)
        return self._with_rows(job if job.method is None else replace(job, work=job.method.work(spec, present)))

    def _with_rows(self, job: Job) -> Job:
        """The same with all that is read: of a copied float tensor one source, of everything else all."""
        if job.method is None and job.tensor.dtype in MERGEABLE:
            return replace(job, rows=(self._row(job.taken_from, job),))
        if self.family.onto is not None:
            job = replace(job, onto=self._row("onto", job))
        present = [name for name in self.recipe.agent_names if name not in job.absent]
        rows = [job.rows[0], *(self._row(name, job) for name in present)]
        agents = tuple(present.index(name) + 1 if name in present else 0 for name in self.recipe.agent_names)
        job = replace(job, agents=agents)
        if job.method is None:
            return replace(job, rows=tuple(rows))
        if "importance" in self.beside:
            job = replace(job, importance=tuple(i + len(rows) - 1 if i else 0 for i in agents))
            rows += [self._beside_row("importance", name, job, job.tensor.shape) for name in present]
        if job.work.gram:
            job = replace(job, grams=tuple(i + len(rows) - 1 if i else 0 for i in agents))
            rows += [replace(self._beside_row("grams", name, job, job.work.gram), whole=True) for name in present]
        if job.work.keep and job.name in self.beside["keep"]["base"].specs:
            job = replace(job, keep=len(rows))
            rows.append(replace(self._beside_row("keep", "base", job, job.work.keep), whole=True))
        return replace(job, rows=tuple(rows))

    def _row(self, source: str, job: Job) -> Row:
        others = {"base": self.family.base, "onto": self.family.onto}
        opened = others.get(source) or self.family.agents[source]
        spec = opened.specs[job.tensor.name]
        decided = self.recipe.inputs.storage_rounding == "ignore" and job.method is not None and source not in others
        return Row(source, spec, rounds=decided and rounds(job.tensor.dtype, opened.weights.stored(spec.name)))

    def _beside_row(self, kind: Beside, name: str, job: Job, shape: tuple[int, ...]) -> Row:
        """The row of what is read beside a tensor, which must have this shape."""
        source, tensor = self.beside[kind][name], job.name
        command = "importance" if kind == "importance" else "grams"
        spec, dtypes = source.specs.get(tensor), GRAMS if command == "grams" else MERGEABLE
        row = Row(f"{kind}/{name}", spec or job.tensor)
        if spec is None or spec.shape != shape or spec.dtype not in dtypes:
            what = "no such tensor" if spec is None else f"shape {list(spec.shape)}"
            if spec is not None and spec.dtype not in dtypes:
                what += f" of {spec.dtype} numbers"
            model = "the base" if name == "base" else "this agent"
            leave = "leave this layer out of the method's `linear`, or take it from the base"
            raise AlignmentError(
                f"{tensor}: {row.words} ({source.text}) has {what}",
                expected=f"shape {list(shape)}" + (f" of {' or '.join(GRAMS)}" if command == "grams" else ""),
                todo=f"Make it again from {model} with `agentmerge {command}`, or "
                + (f"{leave}." if command == "grams" else "take this tensor from the base."),
                where=replace(source.where, tensor=tensor),
            )
        return row


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
    wanted, tied, specs = recipe.output.dtype, family.tied, family.ground.specs

    def dtype(spec: TensorSpec) -> str:
        if tied is not None and spec.name == tied.head:  # the same numbers twice, so the same dtype
            return dtype(specs[tied.embedding])
        return spec.dtype if wanted == "base" or spec.dtype not in MERGEABLE else OUTPUT_DTYPES[wanted]

    return [replace(spec, dtype=dtype(specs[spec.name])) for spec in family.base.specs.values()]


def _unused(rules: Rules) -> Iterator[Note]:
    """Rules that matched nothing, the first of many by name."""
    unused = rules.unused()
    yield from (Note(f"rule {rule!r} matches no tensor") for rule in unused[:MOST])
    if len(unused) > MOST:
        yield Note(f"{len(unused) - MOST:,} more rules match no tensor")


def _unkept(beside: Mapping[Beside, Mapping[str, Source]], jobs: Sequence[Job]) -> Iterator[Note]:
    """What was not measured of what the base must keep.

    Raises:
        AlignmentError: no layer that is merged was measured.
    """
    if "keep" not in beside:
        return
    source, asked = beside["keep"]["base"], [job for job in jobs if job.work.keep]
    if not asked:
        yield Note("keep: nothing is kept, as no linear layer is merged by a method that can", where=source.where)
    lacking = [job.name for job in asked if not job.keep]
    if lacking and len(lacking) == len(asked):
        raise AlignmentError(
            f"keep ({source.text}) has no Gram matrix of any layer that is merged, {lacking[0]} for example",
            todo="Make it from this base: `agentmerge grams BASE --data PROMPTS --out KEEP`.",
            where=source.where,
        )
    if lacking:
        text = f"keep: nothing was measured of {len(lacking):,} layers, which are merged without it: {lacking[0]}"
        yield Note(f"{text}{', ...' if len(lacking) > 1 else ''}", where=source.where)


def _notes(plan: Plan, decisions: Mapping[str, Decision]) -> list[Note]:
    """What the sources are told with."""
    notes = [*plan.family.notes, *(note for source in plan.opened for note in source.notes)]
    tied = plan.family.tied
    if tied is not None and decisions[tied.head] != decisions[tied.embedding]:
        notes.append(Note(f"{tied.head} is tied to {tied.embedding}: the rules of the latter hold"))
    return notes
