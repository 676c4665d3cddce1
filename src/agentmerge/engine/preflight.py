"""Everything that headers, configs and tokenizers show, all of it at once: `check` tells it, `merge` stops at it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from agentmerge.alike.alignment import align
from agentmerge.alike.chain import prepare
from agentmerge.engine.decisions import plan_of, reader_of
from agentmerge.engine.estimate import check_cost
from agentmerge.errors import BASE, MergeError, Note, OutputError, Problem, RecipeError, Role, Where, role_of
from agentmerge.frozen import Frozen
from agentmerge.sources.folder import open_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from agentmerge.alike.chain import Prepared
    from agentmerge.engine.plan import Plan
    from agentmerge.recipe import Recipe
    from agentmerge.sources.folder import Opened

Severity = Literal["error", "warning", "note"]
ORDER: tuple[Severity, ...] = ("error", "warning", "note")


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
    def of(cls, severity: Severity, told: Problem | Note) -> Finding:
        """A problem or a note in a record's words; the place that `where` names is not said twice."""
        role = told.where.role
        where = "recipe" if role is None else str(role)
        found = told.found.removeprefix(f"{where}: ").rstrip(".;\n")
        expected = told.expected if isinstance(told, Problem) else ""
        return cls(severity=severity, where=where, found=found, expected=expected, todo=told.todo)


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
    with ExitStack() as opened:
        look = _Look(recipe, opened)
        plan = look.plan()
        if plan is not None:
            with look.collecting():
                check_cost(plan)
    found = [Finding.of("error", problem) for error in look.errors for problem in error.problems]
    notes = look.notes if plan is None else [*plan.notes, *look.notes]
    found += [Finding.of(note.severity, note) for note in notes]
    return CheckRecord(findings=sorted(dict.fromkeys(found), key=lambda finding: ORDER.index(finding.severity)))


@contextmanager
def planned(recipe: Recipe) -> Iterator[Plan]:
    """The plan of a recipe, its sources open for as long as the with block lasts.

    Raises:
        MergeError: everything that `check` would tell as an error; of the kind of the first.
    """
    with ExitStack() as opened:
        look = _Look(recipe, opened)
        plan = look.plan()
        if plan is None:
            first, *more = look.errors
            raise first if not more else type(first)(*(p for error in look.errors for p in error.problems)) from first
        yield plan


class _Look:
    """One look at the sources of a recipe; an agent that fails a step is left out of those that build on it."""

    def __init__(self, recipe: Recipe, opened: ExitStack) -> None:
        self._recipe, self._opened = recipe, opened
        self.errors: list[MergeError] = []
        self.notes: list[Note] = []
        """What a check tells beside the plan's notes."""

    def plan(self) -> Plan | None:
        """The plan; None where there are errors."""
        sources = self._sources()
        family = self._family(sources) if "base" in sources else None
        if family is None:
            return None
        self.notes += _notes(family, sources)
        for name, agent in family.agents.items():
            with self.collecting(name):
                _align(self._recipe, family, {name: agent})
        importance = {} if self.errors else self._importance(family)
        if not self.errors:
            with self.collecting():
                return plan_of(self._recipe, family, importance)
        self.notes += [Note(text) for text in family.warnings]
        return None

    @contextmanager
    def collecting(self, name: str = "") -> Iterator[None]:
        """Keep an error of the block, which is about the source of this name; "" is the recipe."""
        try:
            yield
        except MergeError as error:
            self.errors.append(_about(error, name))

    def _sources(self) -> dict[str, Opened]:
        recipe = self._recipe
        sources: dict[str, Opened] = {}
        paths = {"base": recipe.base, **{name: recipe.agents[name].source for name in recipe.agent_names}}
        for name, path in paths.items():
            with self.collecting(name):
                sources[name] = self._open(path, str(role_of(name)))
        return sources

    def _family(self, sources: Mapping[str, Opened]) -> Prepared | None:
        base, agents = sources["base"], {name: source for name, source in sources.items() if name != "base"}
        try:
            refuse_same_source(sources)
            reads = reader_of(self._recipe)
            return prepare(base, agents, self._recipe.inputs, reads=reads, tell=self._tell)
        except MergeError as error:
            self.errors.append(_about(error, "base" if base.source in str(error) else ""))
            return None

    def _tell(self, name: str, error: MergeError) -> None:
        self.errors.append(_about(error, name))

    def _importance(self, family: Prepared) -> dict[str, Opened]:
        """Every agent's importance, seen as the agent itself is."""
        found: dict[str, Opened] = {}
        for name in self._recipe.agent_names if "importance" in self._recipe.method.reads else ():
            with self.collecting(name):
                who = f"agents.{name}.importance"
                source = self._open(self._recipe.agents[name].importance or "", who)
                found[name] = family.importance(source, who)
        return found

    def _open(self, text: str, who: str) -> Opened:
        try:
            return self._opened.enter_context(open_checkpoint(text))
        except MergeError as error:
            first, *more = error.problems
            raise type(error)(replace(first, found=f"{who}: {first.found}"), *more) from error


def _about(error: MergeError, name: str) -> MergeError:
    """The same error, its problems about a source where they name none."""
    role = role_of(name) if name else None
    problems = [replace(p, where=replace(p.where, role=p.where.role or role)) for p in error.problems]
    return type(error)(*problems)


def check_output(plan: Plan, out: Path) -> None:
    """Raise OutputError where `out` is a source, or one of them lies inside the other."""
    target = out.resolve()
    for name, source in {"base": plan.family.base, **plan.family.agents}.items():
        folder = source.folder.resolve()
        if target == folder or folder in target.parents or target in folder.parents:
            raise OutputError(
                f"{out}: lies in, or holds, the source of {role_of(name)} ({folder})",
                todo="Choose another --out.",
                where=Where(role_of(name), source.source, path=str(out)),
            )
    for name, source in plan.importance.items():
        folder = source.folder.resolve()
        if target == folder or target in folder.parents:
            raise OutputError(
                f"{out}: holds {source.source}, which is read",
                todo="Choose another --out.",
                where=Where(Role(name), source.source, path=str(out)),
            )


def refuse_same_source(sources: Mapping[str, Opened]) -> None:
    """Raise RecipeError where two sources are the same files."""
    seen: dict[tuple[str, ...], str] = {}
    for name, source in sources.items():
        key = tuple(str((source.folder / file.name).resolve()) for file in source.files)
        if key in seen:
            raise RecipeError(
                f"'{seen[key]}' and '{name}' are the same files ({source.folder.resolve()})",
                todo="Every agent must be a checkpoint of its own, and none of them the base.",
            )
        seen[key] = name


def _align(recipe: Recipe, family: Prepared, agents: Mapping[str, Opened]) -> None:
    reads, inputs = reader_of(recipe), recipe.inputs
    align(
        family.base,
        agents,
        missing_allowed=inputs.missing == "base",
        extra_allowed=inputs.extra == "ignore",
        excused={(tensor, name) for tensor in family.base.specs for name in agents if not reads(tensor, name)},
        hints=[hint for hint in family.hints for name in agents if f"agent '{name}'" in hint],
    )


def _notes(family: Prepared, sources: Mapping[str, Opened]) -> Iterator[Note]:
    """What is only to know."""
    for tie in family.ties:
        text = f"{tie.who}: its {tie.head} repeats {tie.embedding}; that they are equal is checked when they are read"
        yield Note(text, severity="note")
    if family.tied is not None:
        text = f"base: {family.tied.head} is tied to {family.tied.embedding} and counts once"
        yield Note(text, where=Where(BASE), severity="note")
    ours = _dtypes(sources["base"])
    for name in sources.keys() - {"base"}:
        if (theirs := _dtypes(sources[name])) != ours:
            text = f"agent '{name}' stores {', '.join(theirs)}, the base {', '.join(ours)}"
            yield Note(text, where=Where(Role(name)), severity="note")
    donor = family.tokenizer_from
    if donor != "base":
        text = f"agent '{donor}' gives the output its tokenizer and chat template"
        yield Note(text, where=Where(Role(donor)), severity="note")


def _dtypes(source: Opened) -> list[str]:
    return sorted({spec.dtype for spec in source.specs.values()})
