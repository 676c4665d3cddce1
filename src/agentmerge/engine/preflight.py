"""Everything that headers, configs and tokenizers show, all of it at once: `check` tells it, `merge` stops at it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentmerge.alike.chain import BESIDE_ALIKE, make_alike
from agentmerge.alike.kin import kin_notes
from agentmerge.alike.measured import of_these
from agentmerge.engine.decisions import plan_of, reader_of
from agentmerge.engine.estimate import check_cost
from agentmerge.engine.findings import ORDER, CheckRecord, Finding
from agentmerge.engine.reads import beside_recipe, check_output, refuse_data, refuse_same_source, texts_of
from agentmerge.errors import (
    BASE,
    ONTO,
    MergeError,
    Note,
    Role,
    SourceError,
    Where,
    about,
    calling,
    role_of,
)
from agentmerge.hub.afar import UnseenError
from agentmerge.hub.fetch import fetched
from agentmerge.hub.listing import wanted
from agentmerge.hub.look import looked_at
from agentmerge.progress import Silent
from agentmerge.sidefiles.copied import left_behind, listed
from agentmerge.sources.opening import opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agentmerge.alike.family import Family
    from agentmerge.engine.plan import Plan
    from agentmerge.methods.base import Beside
    from agentmerge.progress import Watch
    from agentmerge.recipe import Recipe
    from agentmerge.sources.adapter import Materialize
    from agentmerge.sources.hub import Snapshot
    from agentmerge.sources.source import Source


def check(recipe: Recipe, out: Path | None = None, *, overwrite: bool = False) -> CheckRecord:
    """Look at every source of a recipe without reading its weights, samples aside.

    Args:
        recipe: what would be merged.
        out: where it would go; None looks at no output.
        overwrite: what is there may be replaced.

    Returns:
        Every finding, not only the first.
    """
    with ExitStack() as stack:
        look = _Look(recipe, stack, partial(looked_at, stack=stack, pins={}))
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
def planned(
    recipe: Recipe,
    watch: Watch | None = None,
    pins: Mapping[str, str] | None = None,
    seen: Callable[[Plan], None] | None = None,
) -> Iterator[Plan]:
    """The plan of a recipe, its sources open for as long as the with block lasts.

    What the recipe names on the hub is fetched, once its headers have been looked at.

    Args:
        recipe: what to merge.
        watch: is told how far fetching is.
        pins: commits on the hub by what the recipe calls their models; others are those of now.
        seen: called with the plan as it is seen from afar, before anything is fetched; it may refuse it.

    Raises:
        MergeError: everything that `check` would tell as an error; of the kind of the first.
    """
    pins = pins or {}
    if any(wanted(text) for text in texts_of(recipe)):
        _look_from_afar(recipe, pins, seen)
    on_hub = partial(fetched, watch=watch or Silent(), pins=pins)
    with ExitStack() as stack:
        look = _Look(recipe, stack, on_hub)
        plan = look.must_plan()
        with calling(look.calls):
            yield plan


@contextmanager
def planned_from_afar(recipe: Recipe) -> Iterator[Plan]:
    """The plan of a recipe whose sources on the hub are looked at and not fetched: nothing can be read with it.

    Raises:
        MergeError: as `planned`.
    """
    with ExitStack() as stack:
        yield _Look(recipe, stack, partial(looked_at, stack=stack, pins={})).must_plan()


def _look_from_afar(recipe: Recipe, pins: Mapping[str, str], seen: Callable[[Plan], None] | None) -> None:
    """Raise what `check` finds of sources on the hub, before anything is fetched; what can't be seen stays unsaid."""
    with ExitStack() as stack:
        look = _Look(recipe, stack, partial(looked_at, stack=stack, pins=pins))
        plan = look.plan()
        if not any(isinstance(error, UnseenError) for error in look.errors):
            look.stop()
        if plan is not None and seen is not None:
            seen(plan)


class _Look:
    """One look at the sources of a recipe; an agent that fails a step is left out of those that build on it."""

    def __init__(self, recipe: Recipe, stack: ExitStack, on_hub: Callable[[str], Snapshot | None]) -> None:
        self._recipe, self._stack, self._on_hub, self._reads = recipe, stack, on_hub, reader_of(recipe)
        self.errors: list[MergeError] = []
        self.calls: dict[str, str] = {}
        """See Source.calls, of all that were opened."""
        self.notes: list[Note] = []
        """What a check tells beside the plan's notes."""

    def plan(self) -> Plan | None:
        """The plan; None where there are errors."""
        sources = self._sources()
        family = self._family(sources) if "base" in sources else None
        if family is None:
            return None
        family = self._with_side_files(family)
        family = family.noted(*kin_notes(family))
        self.notes += _notes(family, sources)
        beside = {} if self.errors else self._beside(family, sources)
        if not self.errors:
            with self.collecting():
                return plan_of(self._recipe, family, beside)
        self.notes += family.notes
        return None

    def must_plan(self) -> Plan:
        """The plan, or every error at once."""
        plan = self.plan()
        self.stop()
        assert plan is not None
        return plan

    def stop(self) -> None:
        """Raise the errors that were found, if there are any."""
        if self.errors:
            first, *more = self.errors
            problems = dict.fromkeys(problem for error in self.errors for problem in error.problems)
            raise first if not more else type(first)(*problems) from first

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep an error of the block."""
        try:
            yield
        except MergeError as error:
            self.errors.append(error.calling(self.calls))

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
            self.errors += [error.calling(self.calls) for error in family.errors]
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
            self.errors.append(type(error)(*problems).calling(self.calls))
            return family
        behind = left_behind(base.folder.path, listing, [file.name for file in base.identity.files])
        return family.noted(*(replace(note, where=note.where.filled(base.where)) for note in behind))

    def _beside(self, family: Family, sources: Mapping[str, Source]) -> dict[Beside, dict[str, Source]]:
        """What the method reads beside the weights of every agent, or of the base (`keep`), seen as they are."""
        found: dict[Beside, dict[str, Source]] = {}
        recipe = self._recipe
        for kind in recipe.method.reads:
            found[kind] = {}
            agents = {} if kind == "keep" else {name: recipe.agents[name] for name in recipe.agent_names}
            for name, fields in agents.items() or [("base", recipe)]:
                with self.collecting():
                    role, text = Role(name if name in agents else "", kind), getattr(fields, kind) or ""
                    refuse_data(role, text, kind)
                    lying = self._measured(self._open(role, text), name, sources)
                    found[kind][name] = BESIDE_ALIKE[kind](family, lying)
        return found

    def _measured(self, lying: Source, name: str, sources: Mapping[str, Source]) -> Source:
        """What lies beside a source, measured on that, as far as can be told where its numbers are here.

        What the base must keep may have been measured on what the merge is put onto, which must keep it as well.
        """
        named = {name, "onto"} if name == "base" and "onto" in sources else {name}
        if any(sources[one].unseen for one in {"base", *named}):
            return lying
        others = [source for other, source in sources.items() if other not in named and not source.unseen]
        allowed = self._recipe.inputs.measured == "allow"
        return of_these(lying, [sources[one] for one in sorted(named)], others, allowed=allowed)

    def _open(
        self, role: Role, text: str, base: Source | None = None, materialize: Materialize = "base_dtype"
    ) -> Source:
        try:
            with about(Where(role, text)):
                snapshot = self._on_hub(text)
            source = self._stack.enter_context(opened(role, text, base, materialize, snapshot))
        except MergeError as error:
            raise beside_recipe(error, self._recipe, text).named() from error
        self.calls.update(source.calls)
        return source


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
