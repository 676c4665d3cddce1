"""What will be done, decided from headers and configs alone. Reads no tensor."""

from __future__ import annotations

import json
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

from agentmerge.alike.alignment import Alignment, align
from agentmerge.alike.chain import importance_alike, make_alike
from agentmerge.alike.tokens import content_of
from agentmerge.engine.rules import Decision, Rules
from agentmerge.errors import BASE, AlignmentError, Note, OutputError, RecipeError, Role, SourceError
from agentmerge.files.layout import Layout, Place, plan_layout
from agentmerge.machine import available_cpus
from agentmerge.recipe import OUTPUT_DTYPES
from agentmerge.sources.beside import read_config
from agentmerge.sources.opening import opened
from agentmerge.tensors import DTYPES, LEAF, MERGEABLE, Block, Cast, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agentmerge.methods.base import MergeMethod
    from agentmerge.recipe import Recipe
    from agentmerge.sources.source import Source
    from agentmerge.survey.statistic import AfterStatistic

BLOCK_SIZES = 1 << 20, 8 << 20
"""Least and most bytes of the base in a block that is chosen here; a block costs about 0.3 ms whatever its size."""
BUFFERS = 1 << 30
"""Bytes that the blocks of all workers may take together before smaller ones are chosen, down to the least."""
MOST_WORKERS = 16
RESIDENT = 170_000_000
"""Bytes of interpreter, numpy and compiled kernels beside the blocks, for the memory estimate."""


@dataclass(frozen=True, slots=True)
class Task:
    """What happens to one tensor of the base."""

    tensor: TensorSpec
    places: tuple[Place, ...]
    """Where the result goes: one place, or two where the output head is tied to the embedding."""
    cast: Cast
    method: MergeMethod | None
    """None: the tensor is copied."""
    taken_from: str
    """For a copy: "base" or an agent's name."""
    absent: frozenset[str]
    """Agents that count as unchanged here."""
    reason: str
    """Why it is copied; "" where it is merged."""


class Plan:
    """Open sources, a task per tensor and the layout of the output; a context manager, it closes the sources."""

    further: tuple[AfterStatistic[Any], ...] = ()
    """What is asked of the merge beside what its methods ask."""

    def __init__(self, recipe: Recipe) -> None:
        """Open every source and decide everything that headers can decide.

        Raises:
            MergeError: what headers, configs and the recipe show to be wrong.
        """
        self.recipe = recipe
        self.names = recipe.agent_names
        self.weights = tuple(recipe.agents[name].weight for name in self.names)
        self._open = ExitStack()
        try:
            base = self._opened(BASE, recipe.base)
            agents = {n: self._opened(Role(n), recipe.agents[n].source, base) for n in self.names}
            refuse_same_source({"base": base, **agents})
            self.family = make_alike(base, agents, recipe.inputs, reader_of(recipe))
            if self.family.errors:
                raise self.family.errors[0]
            self.base, self.agents = self.family.base, self.family.agents
            self.extra = {"importance": self._importance()} if "importance" in recipe.method.reads else {}
            self._decide()
        except BaseException:
            self.close()
            raise

    def varied(self, recipe: Recipe) -> Plan:
        """The plan of a recipe that differs in the method's settings alone: it shares the open sources.

        Raises:
            MergeError: what the other settings make impossible.
        """
        other = copy(self)
        other.recipe, other._open = recipe, ExitStack()
        other.__dict__.pop("merged", None)
        if recipe.method.reads != self.recipe.method.reads:
            raise RecipeError("method: all recipes of one pass must read the same, weights alone or importance too.")
        other._decide()
        if [_sees_all(task) for task in other.tasks] != [_sees_all(task) for task in self.tasks]:
            raise RecipeError(
                "method: all recipes of one pass must see the same tensors whole, found one that sees others in "
                "blocks. Merge them one by one."
            )
        return other

    def _decide(self) -> None:
        inputs, rules = self.recipe.inputs, Rules(self.recipe)
        decisions = {name: rules.decide(name) for name in self.base.specs}
        self.alignment: Alignment = align(
            self.base,
            self.agents,
            missing_allowed=inputs.missing == "base",
            extra_allowed=inputs.extra == "ignore",
            excused=_unread(decisions, self.names),
            hints=self.family.hints,
        )
        unused = rules.unused()
        self.tied = self.family.tied
        self.notes = [*(Note(f"rule {rule!r} matches no tensor") for rule in unused), *self.family.notes]
        for source in self._sources:
            self.notes += source.notes
        self.notes += [
            Note(
                f"agent '{agent}': {len(names)} tensors that the base lacks are left out",
                where=self.agents[agent].where,
            )
            for agent, names in self.alignment.ignored.items()
        ]
        specs = [self._output_spec(spec) for spec in self.alignment.specs]
        self.layout: Layout = plan_layout(specs, int(self.recipe.output.shard_size), self.base.metadata)
        self.tasks = tuple(
            self._task(spec, decisions[spec.name]) for spec in self.alignment.specs if not self._is_tied_head(spec)
        )
        if self.tied and decisions[self.tied.head] != decisions[self.tied.embedding]:
            note = f"{self.tied.head} is tied to {self.tied.embedding}: the rules of the latter hold"
            self.notes.append(Note(note))
        if not any(task.tensor.elements for task in self.merged):
            raise RecipeError(
                "nothing to merge: the rules take every tensor from one source, or the base has no "
                f"{', '.join(sorted(MERGEABLE))} tensor that holds an element. Check base and rules."
            )
        for task in self.merged:
            self._check_extra(task)

    def _check_extra(self, task: Task) -> None:
        for kind, sources in self.extra.items():
            for name, source in zip(self.names, sources, strict=True):
                found = source.specs.get(task.tensor.name)
                if name not in task.absent and (found is None or found.shape != task.tensor.shape):
                    what = "no such tensor" if found is None else f"shape {list(found.shape)}"
                    raise AlignmentError(
                        f"{task.tensor.name}: {kind} of agent '{name}' ({source.text}) has {what}, expected shape "
                        f"{list(task.tensor.shape)}. Make it again from this agent, or take this tensor from the base."
                    )

    def _opened(self, role: Role, text: str, base: Source | None = None) -> Source:
        try:
            return self._open.enter_context(opened(role, text, base))
        except SourceError as error:
            raise error.prefixed(f"{role}: ") from error

    def _importance(self) -> tuple[Source, ...]:
        """Open every agent's importance; its tensors are matched when the tasks are known."""
        texts = [(name, self.recipe.agents[name].importance or "") for name in self.names]
        sources = [self._opened(Role(name, "importance"), text) for name, text in texts]
        return tuple(importance_alike(self.family, source) for source in sources)

    @property
    def warnings(self) -> list[str]:
        """The notes as texts."""
        return [str(note) for note in self.notes]

    def _is_tied_head(self, spec: TensorSpec) -> bool:
        return self.tied is not None and spec.name == self.tied.head

    def _output_spec(self, spec: TensorSpec) -> TensorSpec:
        if self.tied is not None and spec.name == self.tied.head:  # the same numbers twice, so the same dtype
            return replace(spec, dtype=self._output_spec(self.base.specs[self.tied.embedding]).dtype)
        wanted = self.recipe.output.dtype
        if wanted == "base" or spec.dtype not in MERGEABLE:
            return spec
        return TensorSpec(spec.name, OUTPUT_DTYPES[wanted], spec.shape)

    def _task(self, spec: TensorSpec, decision: Decision) -> Task:
        place = self.layout.places[spec.name]
        tied = self.tied is not None and spec.name == self.tied.embedding
        places = (place, self.layout.places[self.tied.head]) if tied and self.tied else (place,)
        merged = decision.take is None and spec.dtype in MERGEABLE
        absent = self.alignment.lacking.get(spec.name, frozenset()) | decision.skip
        if decision.take is not None:
            absent |= set(self.names) - {decision.take}
        reason = "" if merged else decision.reason or f"{spec.dtype} tensors are not merged"
        return Task(
            tensor=spec,
            places=places,
            cast=Cast(place.spec.dtype, self.recipe.output.rounding, self.recipe.seed),
            method=decision.method if merged else None,
            taken_from="base" if decision.take is None or decision.take in absent else decision.take,
            absent=absent,
            reason=reason,
        )

    @cached_property
    def merged(self) -> tuple[Task, ...]:
        """The tasks that a method works on, and that every count is over."""
        return tuple(task for task in self.tasks if task.method is not None)

    @property
    def methods(self) -> tuple[MergeMethod, ...]:
        """The recipe's method, then every variation of it that a rule asks for."""
        found = (self.recipe.method, *(task.method for task in self.merged if task.method is not None))
        return tuple(dict.fromkeys(found))

    @property
    def workers(self) -> int:
        """Threads."""
        wanted = self.recipe.run.workers
        return min(available_cpus(), MOST_WORKERS) if wanted == "auto" else wanted

    @property
    def block_size(self) -> int:
        """Bytes of the base in one block."""
        wanted = self.recipe.run.block_size
        if wanted != "auto":
            return int(wanted)
        least, most = BLOCK_SIZES
        width = max((DTYPES[spec.dtype].itemsize for spec in self.base.specs.values()), default=1)
        return min(max(BUFFERS * width // (self.workers * self._row_bytes), least), most)

    def blocks(self, task: Task, start: int = 0, stop: int | None = None) -> Iterator[Block]:
        """The blocks of elements [start, stop) of one tensor, every inner edge a multiple of LEAF.

        A method of reach "tensor" sees its tensors whole.
        """
        stop = task.tensor.elements if stop is None else stop
        step = max(self.block_size // DTYPES[task.tensor.dtype].itemsize // LEAF, 1) * LEAF
        if _sees_all(task):
            start, step = 0, task.tensor.elements
        for edge in range(start, stop, max(step, 1)):
            yield Block(task.tensor, edge, min(edge + step, stop))

    def sources_of(self, task: Task) -> dict[str, Source]:
        """What is read for a task: "base", the agents by name, and what is read beside their weights."""
        if task.method is None and task.tensor.dtype in MERGEABLE:
            return {task.taken_from: self.base if task.taken_from == "base" else self.agents[task.taken_from]}
        present = {name: agent for name, agent in self.agents.items() if name not in task.absent}
        extra = {
            f"{kind}/{name}": source
            for kind, opened in (self.extra if task.method is not None else {}).items()
            for name, source in zip(self.names, opened, strict=True)
            if name in present
        }
        return {"base": self.base, **present, **extra}

    def bytes_read(self, task: Task, block: Block) -> int:
        """Bytes of one block over every source that is read for it."""
        name = task.tensor.name
        return block.elements * sum(DTYPES[s.specs[name].dtype].itemsize for s in self.sources_of(task).values())

    @property
    def input_bytes(self) -> int:
        """Bytes of one pass over everything that is merged."""
        return sum(self.bytes_read(task, Block(task.tensor, 0, task.tensor.elements)) for task in self.merged)

    @property
    def memory_bytes(self) -> int:
        """Resident memory to expect: each worker's largest block, and once what a method needs beside it."""
        row = self._row_bytes
        largest = max(
            (
                block.elements * (row + 4 * _sees_all(task))  # a whole tensor's result is float32 before the cast
                for task in self.tasks
                for block in self.blocks(task)
            ),
            default=0,
        )
        working = (t.method.working_bytes(t.tensor, self._present(t)) for t in self.merged if t.method is not None)
        return RESIDENT + self.workers * largest + max(working, default=0)

    @property
    def _row_bytes(self) -> int:
        """Bytes that one element takes at most in a worker's buffers: of every source, and its result."""
        opened = (*self._sources, *self._extras)
        return 4 + sum(max((DTYPES[spec.dtype].itemsize for spec in s.specs.values()), default=0) for s in opened)

    @property
    def cost(self) -> float:
        """FLOP of all merging that takes longer to compute than to read."""
        return sum(self.cost_of(method) for method in self.methods)

    def cost_of(self, method: MergeMethod) -> float:
        """FLOP of the tensors that this method merges."""
        return sum(method.cost(t.tensor, self._present(t)) for t in self.merged if t.method == method)

    def _present(self, task: Task) -> int:
        return len(self.names) - len(task.absent)

    @property
    def _sources(self) -> tuple[Source, ...]:
        return (self.base, *self.agents.values())

    @property
    def output_bytes(self) -> int:
        """Bytes of the weight files to be written."""
        return sum(shard.size for shard in self.layout.shards)

    @property
    def scope_id(self) -> str:
        """Tells which elements of which agents are counted: a saved survey is of use for the same scope only."""
        agents = [f"{name}\t{weight!r}" for name, weight in zip(self.names, self.weights, strict=True)]
        lines = [f"{t.tensor.name}\t{t.tensor.shape}\t{sorted(t.absent)}" for t in self.merged]
        return sha256("\n".join([*agents, *lines]).encode()).hexdigest()

    def identities(self) -> dict[str, Any]:
        """What tells the sources from others, by "base" and agent names, as JSON data."""
        sources = {"base": self.base, **self.agents}
        found = {n: {"source": s.text, **s.identity.as_json(), **self._beside[n]} for n, s in sources.items()}
        for kind, beside in self.extra.items():
            extra = zip(self.names, beside, strict=True)
            found |= {f"{name}.{kind}": {"source": s.text, **s.identity.as_json()} for name, s in extra}
        return found

    @cached_property
    def _beside(self) -> dict[str, dict[str, str]]:
        """What decides beside the headers how a source is read: its config and, where rows are added, its tokens."""
        folders = self.family.folders
        found = {name: {"config_sha256": _digest(read_config(folder))} for name, folder in folders.items()}
        if self.recipe.inputs.vocab == "union":
            found = {n: {**found[n], "tokenizer_sha256": content_of(folder).hex()} for n, folder in folders.items()}
        return found

    def check_output(self, out: Path) -> None:
        """Raise OutputError where `out` is a source, or one of them lies inside the other."""
        target = out.resolve()
        for name, source in {"base": self.base, **self.agents}.items():
            folder = source.folder.path.resolve()
            if target == folder or folder in target.parents or target in folder.parents:
                who = name if name == "base" else f"agent '{name}'"
                raise OutputError(f"{out}: lies in, or holds, the source of {who} ({folder}). Choose another --out.")
        for source in self._extras:
            folder = source.folder.path.resolve()
            if target == folder or target in folder.parents:
                raise OutputError(f"{out}: holds {source.text}, which is read. Choose another --out.")

    @property
    def _extras(self) -> tuple[Source, ...]:
        """What is read beside the weights."""
        return tuple(source for opened in self.extra.values() for source in opened)

    def restat(self) -> None:
        """Raise SourceError where a source's file changed since it was opened."""
        for source in (*self._sources, *self._extras):
            source.identity.restat()

    def close(self) -> None:
        """Close the sources."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _digest(config: dict[str, Any]) -> str:
    return sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def _sees_all(task: Task) -> bool:
    """Whether the task's method must see its tensor whole."""
    return task.method is not None and task.method.reach_of(task.tensor) == "tensor"


def reader_of(recipe: Recipe) -> Callable[[str, str], bool]:
    """Whether any task reads a tensor of an agent, by the recipe's rules."""
    rules = Rules(recipe)

    def reads(tensor: str, agent: str) -> bool:
        decision = rules.decide(tensor)
        return agent not in decision.skip and decision.take in (None, agent)

    return reads


def _unread(decisions: dict[str, Decision], names: tuple[str, ...]) -> set[tuple[str, str]]:
    """(tensor, agent) pairs that no task reads: skipped ones, and all but the taken one."""
    return {
        (tensor, name)
        for tensor, decision in decisions.items()
        for name in names
        if name in decision.skip or (decision.take is not None and decision.take != name)
    }


def refuse_same_source(sources: dict[str, Source]) -> None:
    """Raise RecipeError where two sources are the same files."""
    seen: dict[tuple[Path, ...], str] = {}
    for name, source in sources.items():
        key = source.identity.paths
        if key in seen:
            raise RecipeError(
                f"'{seen[key]}' and '{name}' are the same files ({source.folder.path.resolve()}). "
                "Every agent must be a checkpoint of its own, and none of them the base."
            )
        seen[key] = name
