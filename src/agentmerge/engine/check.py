"""Everything that headers, configs and tokenizers can show, all of it at once. Reads no tensor, writes nothing."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

from agentmerge.alike.alignment import align
from agentmerge.alike.chain import make_alike
from agentmerge.engine.cost import check_cost
from agentmerge.engine.plan import Plan, reader_of, refuse_same_source
from agentmerge.errors import BASE, MergeError, Note, Role, Where
from agentmerge.frozen import Frozen
from agentmerge.sources.opening import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.alike.family import Family
    from agentmerge.errors import Problem
    from agentmerge.recipe import Recipe
    from agentmerge.sources.source import Source

Severity = Literal["error", "warning", "note"]


class Finding(Frozen):
    """One thing worth knowing before a merge."""

    severity: Severity
    """An error stops the merge; a warning is told and merged; a note is only to know."""
    where: str
    """"base", "agent 'NAME'" or "recipe"."""
    found: str
    expected: str = ""
    todo: str = ""

    @classmethod
    def of(cls, said: Problem | Note) -> Finding:
        """A problem or a note as a row."""
        where = "recipe" if said.where.role is None else str(said.where.role)
        if isinstance(said, Note):
            return cls(severity=said.severity, where=where, found=said.found, todo=said.todo)
        found = said.found.rstrip(";.\n")  # what joins it to the rest of the sentence
        return cls(severity="error", where=where, found=found, expected=said.expected, todo=said.todo)


class CheckRecord(Frozen):
    """What a check found, errors first."""

    format: str = "agentmerge.check/1"
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Whether nothing that was looked at stops a merge."""
        return not self.count("error")

    def count(self, severity: Severity) -> int:
        """How many findings are of this severity."""
        return sum(finding.severity == severity for finding in self.findings)


def check(recipe: Recipe) -> CheckRecord:
    """Look at every source of a recipe without reading its weights.

    Args:
        recipe: what would be merged.

    Returns:
        Every finding, not only the first.
    """
    return _Check(recipe).run()


class _Check:
    """The checks one by one; an agent that fails one is left out of those that build on it."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._findings: list[Finding] = []

    def run(self) -> CheckRecord:
        with ExitStack() as stack:
            sources = self._opened(stack)
            base = sources.pop("base", None)
            if base is not None:
                self._sources(base, sources)
        if not any(finding.severity == "error" for finding in self._findings):
            self._plan()
        order = ("error", "warning", "note")
        found = dict.fromkeys(self._findings)
        return CheckRecord(findings=sorted(found, key=lambda finding: order.index(finding.severity)))

    def _opened(self, stack: ExitStack) -> dict[str, Source]:
        recipe = self._recipe
        sources: dict[str, Source] = {}
        texts = {BASE: recipe.base, **{Role(name): recipe.agents[name].source for name in recipe.agent_names}}
        for role, text in texts.items():
            try:
                sources[role.name] = stack.enter_context(opened(role, text, sources.get("base")))
            except MergeError as error:
                self._refuse(error)
        return sources

    def _sources(self, base: Source, agents: dict[str, Source]) -> None:
        try:
            refuse_same_source({"base": base, **agents})
        except MergeError as error:
            self._refuse(error)
            return
        family = make_alike(base, agents, self._recipe.inputs, reader_of(self._recipe))
        self._refuse(*family.errors)
        self._tell(*family.notes, *_notes(family, base, agents))
        self._align(family)

    def _align(self, family: Family) -> None:
        """Agent by agent, so that each tells its own."""
        inputs, reads = self._recipe.inputs, reader_of(self._recipe)
        for name, agent in family.agents.items():
            try:
                align(
                    family.base,
                    {name: agent},
                    missing_allowed=inputs.missing == "base",
                    extra_allowed=inputs.extra == "ignore",
                    excused={(tensor, name) for tensor in family.base.specs if not reads(tensor, name)},
                    hints=family.hints,
                )
            except MergeError as error:
                self._refuse(error)

    def _plan(self) -> None:
        """What remains: rules, importance, cost, and everything together."""
        try:
            with Plan(self._recipe) as plan:
                self._tell(*plan.notes)
                check_cost(plan)
        except MergeError as error:
            self._refuse(error)

    def _refuse(self, *errors: MergeError) -> None:
        self._findings += [Finding.of(problem) for error in errors for problem in error.problems]

    def _tell(self, *notes: Note) -> None:
        self._findings += [Finding.of(note) for note in notes]


def _notes(family: Family, base: Source, agents: dict[str, Source]) -> Iterator[Note]:
    for tie in family.ties:
        yield _note(
            f"{tie.source.role}: its {tie.pair.head} repeats {tie.pair.embedding}; that they are equal is checked "
            "when they are read",
            tie.source.where,
        )
    if family.tied is not None:
        yield _note(f"base: {family.tied.head} is tied to {family.tied.embedding} and counts once", base.where)
    ours = _dtypes(base)
    for name, agent in agents.items():
        if (theirs := _dtypes(agent)) != ours:
            yield _note(f"agent '{name}' stores {', '.join(theirs)}, the base {', '.join(ours)}", agent.where)
    if (donor := family.tokenizer_from) != "base":
        yield _note(f"agent '{donor}' gives the output its tokenizer and chat template", Where(Role(donor)))


def _note(text: str, where: Where) -> Note:
    return Note(text, where=where, severity="note")


def _dtypes(source: Source) -> list[str]:
    return sorted({spec.dtype for spec in source.specs.values()})
