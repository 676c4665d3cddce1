"""Everything that headers, configs and tokenizers show, all of it at once: `check` tells it, `merge` stops at it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentmerge.alike.chain import BESIDE_ALIKE, make_alike
from agentmerge.engine.decisions import plan_of, reader_of
from agentmerge.engine.estimate import check_cost, drafts_of
from agentmerge.errors import BASE, ONTO, MergeError, Note, Problem, RecipeError, Role, SourceError, Where, role_of
from agentmerge.files.destination import Destination
from agentmerge.files.protected import Protected
from agentmerge.files.torch_header import SUFFIXES
from agentmerge.files.writer import missing_bytes
from agentmerge.frozen import Frozen, Record
from agentmerge.sidefiles.copied import left_behind, listed
from agentmerge.sources.beside import is_tokenizer
from agentmerge.sources.hub import local_path
from agentmerge.sources.opening import opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentmerge.alike.family import Family
    from agentmerge.engine.plan import Plan
    from agentmerge.methods.base import Beside
    from agentmerge.recipe import Recipe
    from agentmerge.sources.adapter import Materialize
    from agentmerge.sources.source import Source

Severity = Literal["error", "warning", "note"]
ORDER: tuple[Severity, ...] = ("error", "warning", "note")


class Finding(Frozen):
    """One thing worth knowing before a merge."""

    severity: Severity
    """An error stops the merge; a warning is told and merged; a note is only to know."""
    where: str
    """"base", "onto", "agent 'NAME'" or "recipe"."""
    found: str
    expected: str = ""
    todo: str = ""

    @classmethod
    def of(cls, told: Problem | Note) -> Finding:
        """A problem or a note in a record's words."""
        role = told.where.role
        where = "recipe" if role is None else str(Role(role.agent) if role.agent else role)
        found = told.found.rstrip(".;\n")
        if isinstance(told, Note):
            return cls(severity=told.severity, where=where, found=found, todo=told.todo)
        return cls(severity="error", where=where, found=found, expected=told.expected, todo=told.todo)


class CheckRecord(Record):
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


def check(recipe: Recipe, out: Path | None = None, *, overwrite: bool = False) -> CheckRecord:
    """Look at every source of a recipe without reading its weights.

    Args:
        recipe: what would be merged.
        out: where it would go; None looks at no output.
        overwrite: what is there may be replaced.

    Returns:
        Every finding, not only the first.
    """
    with ExitStack() as stack:
        look = _Look(recipe, stack)
        plan = look.plan()
        if plan is not None:
            with look.collecting():
                check_cost(plan)
            with look.collecting():
                if out is not None:
                    check_output(plan, out, overwrite=overwrite)
    found = [Finding.of(problem) for error in look.errors for problem in error.problems]
    notes = look.notes if plan is None else [*plan.notes, *look.notes]
    found += map(Finding.of, notes)
    return CheckRecord(findings=sorted(dict.fromkeys(found), key=lambda finding: ORDER.index(finding.severity)))


@contextmanager
def planned(recipe: Recipe) -> Iterator[Plan]:
    """The plan of a recipe, its sources open for as long as the with block lasts.

    Raises:
        MergeError: everything that `check` would tell as an error; of the kind of the first.
    """
    with ExitStack() as stack:
        look = _Look(recipe, stack)
        plan = look.plan()
        if plan is None:
            first, *more = look.errors
            problems = dict.fromkeys(problem for error in look.errors for problem in error.problems)
            raise first if not more else type(first)(*problems) from first
        yield plan


class _Look:
    """One look at the sources of a recipe; an agent that fails a step is left out of those that build on it."""

    def __init__(self, recipe: Recipe, stack: ExitStack) -> None:
        self._recipe, self._stack, self._reads = recipe, stack, reader_of(recipe)
        self.errors: list[MergeError] = []
        self.notes: list[Note] = []
        """What a check tells beside the plan's notes."""

    def plan(self) -> Plan | None:
        """The plan; None where there are errors."""
        sources = self._sources()
        family = self._family(sources) if "base" in sources else None
        if family is None:
            return None
        family = self._with_side_files(family)
        self.notes += _notes(family, sources)
        beside = {} if self.errors else self._beside(family)
        if not self.errors:
            with self.collecting():
                return plan_of(self._recipe, family, beside)
        self.notes += family.notes
        return None

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep an error of the block."""
        try:
            yield
        except MergeError as error:
            self.errors.append(error)

    def _sources(self) -> dict[str, Source]:
        recipe = self._recipe
        sources: dict[str, Source] = {}
        onto = {} if recipe.onto is None else {ONTO: recipe.onto}
        texts = {BASE: recipe.base, **onto, **{Role(name): recipe.agents[name].source for name in recipe.agent_names}}
        for role, text in texts.items():
            with self.collecting():
                way = recipe.agents[role.name].materialize if role.agent else "base_dtype"
                sources[role.name] = self._open(role, text, sources.get("base") if role.agent else None, way)
        return sources

    def _family(self, sources: Mapping[str, Source]) -> Family | None:
        onto = sources.get("onto")
        agents = {name: sources[name] for name in self._recipe.agent_names if name in sources}
        with self.collecting():
            refuse_same_source(sources)
            family = make_alike(sources["base"], agents, self._recipe.inputs, self._reads, onto)
            self.errors += family.errors
            return family
        return None

    def _with_side_files(self, family: Family) -> Family:
        """The family, once all that its base and its tokenizer should bring is there, with a note of what stays."""
        base, donor = family.ground, family.tokenizer_from
        tokenizer = None if donor in ("base", "onto") else family.folders.get(donor)
        try:
            listing = listed(base.folder.path, tokenizer, known_only=not base.folder.whole)
        except SourceError as error:
            theirs = Where(Role(donor)) if tokenizer is not None else base.where
            roles = [theirs if Path(p.where.path).parent == tokenizer else base.where for p in error.problems]
            problems = [replace(p, where=p.where.filled(w)) for p, w in zip(error.problems, roles, strict=True)]
            self.errors.append(type(error)(*problems))
            return family
        behind = left_behind(base.folder.path, listing, [file.name for file in base.identity.files])
        return family.noted(*(replace(note, where=note.where.filled(base.where)) for note in behind))

    def _beside(self, family: Family) -> dict[Beside, dict[str, Source]]:
        """What the method reads beside every agent's weights, seen as the agent itself is."""
        found: dict[Beside, dict[str, Source]] = {}
        for kind in self._recipe.method.reads:
            found[kind] = {}
            for name in self._recipe.agent_names:
                with self.collecting():
                    source = self._open(Role(name, kind), getattr(self._recipe.agents[name], kind) or "")
                    found[kind][name] = BESIDE_ALIKE[kind](family, source)
        return found

    def _open(
        self, role: Role, text: str, base: Source | None = None, materialize: Materialize = "base_dtype"
    ) -> Source:
        try:
            return self._stack.enter_context(opened(role, text, base, materialize))
        except MergeError as error:
            raise error.named() from error


def check_output(plan: Plan, out: Path, *, overwrite: bool = False) -> None:
    """Raise OutputError where a merge can't end in `out`: what `merge`, a dry run and `check` say of it.

    Args:
        plan: what is read and how much is written.
        out: the folder to appear.
        overwrite: what is there may be replaced.
    """
    refuse_read(plan, out)
    place = Destination(out).checked(overwrite=overwrite)
    place.check_space(missing_bytes(place.folder, plan.layout, drafts_of([plan])))


def refuse_read(plan: Plan, out: Path) -> None:
    """Raise OutputError where `out`, or a folder that a run has beside it, touches what is read."""
    place = Destination(out)
    reads_of(plan).refuse(out, place.out, place.folder, place.aside.folder)


def reads_of(plan: Plan) -> Protected:
    """Every file that a merge reads."""
    read = named_in(plan.recipe)
    beside = (source for by in plan.beside.values() for source in by.values())
    for source in (plan.family.base, plan.family.ground, *plan.family.agents.values(), *beside):
        what = f"the source of {source.role}"
        for file in source.identity.files:
            read.add_file(source.identity.folder / file.name, what)
        if source.role is not None and not (source.role.agent and source.role.beside):
            read.add_folder(source.folder.path, what, whole=source.folder.whole)
    return read


def named_in(recipe: Recipe) -> Protected:
    """The files and folders that a recipe names, its own file included."""
    read = Protected()
    files = [(recipe.run.survey, "the saved survey"), (recipe.file, "the recipe")]
    sources = [(recipe.base, "the source of base"), (recipe.onto or "", "the source of onto")]
    for name, agent in recipe.agents.items():
        sources += [(agent.source, f"the source of agent '{name}'")]
        sources += [(agent.importance or "", f"the importance of '{name}'")]
        sources += [(agent.grams or "", f"the grams of '{name}'")]
    named = [(Path(path), what) for path, what in files if path]
    for path, what in (*named, *((local_path(text), what) for text, what in sources if text)):
        with suppress(OSError):  # no path of this system, such as an id
            _protect(read, path, what)
    return read


def _protect(read: Protected, path: Path, what: str) -> None:
    """A folder; or a file, and with one of weights the config and tokenizer beside it."""
    if path.is_dir():
        read.add_folder(path, what)
    elif path.exists():
        read.add_file(path, what)
        for beside in path.parent.iterdir() if path.suffix in (".safetensors", *SUFFIXES) else ():
            if beside.name == "config.json" or is_tokenizer(beside.name):
                read.add_file(beside, what)


def refuse_same_source(sources: Mapping[str, Source]) -> None:
    """Raise RecipeError where two sources are the same files."""
    seen: dict[tuple[Path, ...], str] = {}
    for name, source in sources.items():
        key = source.identity.paths
        if key in seen:
            raise RecipeError(
                f"'{seen[key]}' and '{name}' are the same files ({source.folder.path.resolve()})",
                todo="Every agent must be a checkpoint of its own, and none of them the base"
                f"{' or what the merge is put onto' if 'onto' in sources else ''}.",
            )
        seen[key] = name


def _notes(family: Family, sources: Mapping[str, Source]) -> Iterator[Note]:
    """What is only to know."""
    for tie in family.ties:
        pair = tie.pair
        text = f"its {pair.head} repeats {pair.embedding}; that they are equal is checked when they are read"
        yield Note(text, where=tie.source.where, severity="note", named=True)
    if family.tied is not None:
        text = f"{family.tied.head} is tied to {family.tied.embedding} and counts once"
        yield Note(text, where=family.base.where, severity="note", named=True)
    ours = _dtypes(sources["base"])
    for name, source in sources.items():
        if (theirs := _dtypes(source)) != ours:
            text = f"{role_of(name)} stores {', '.join(theirs)}, the base {', '.join(ours)}"
            yield Note(text, where=source.where, severity="note")
    donor = family.tokenizer_from
    if donor not in ("base", "onto"):
        text = f"agent '{donor}' gives the output its tokenizer and chat template"
        yield Note(text, where=Where(Role(donor)), severity="note")


def _dtypes(source: Source) -> list[str]:
    return sorted({spec.dtype for spec in source.specs.values()})
