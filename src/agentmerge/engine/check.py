"""Everything that headers, configs and tokenizers can show, all of it at once. Reads no tensor, writes nothing."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

from agentmerge.alike.alignment import align
from agentmerge.alike.chain import Prepared, prepare
from agentmerge.engine.cost import check_cost
from agentmerge.engine.plan import Plan, reader_of, refuse_same_source
from agentmerge.errors import MergeError
from agentmerge.frozen import Frozen
from agentmerge.sources.folder import open_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agentmerge.recipe import Recipe
    from agentmerge.sources.folder import Opened

Severity = Literal["error", "warning", "note"]
SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")
EXPECTED = re.compile(r"[,;] expected |\.?\s+Expected ")


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
    def of(cls, severity: Severity, where: str, text: str) -> Finding:
        """Take a message apart: what was found, what was expected, what to do; see rule 6 of the design."""
        text = text.removeprefix(f"{where}: ")
        found, mark, rest = _cut(EXPECTED, text)
        parts = SENTENCE.split(rest if mark else found, maxsplit=1)
        if mark:
            return cls(severity=severity, where=where, found=found, expected=parts[0].rstrip("."), todo=_second(parts))
        return cls(severity=severity, where=where, found=parts[0].rstrip("."), todo=_second(parts))


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
        with ExitStack() as opened:
            sources = self._opened(opened)
            base = sources.pop("base", None)
            if base is not None:
                self._sources(base, sources)
        if not any(finding.severity == "error" for finding in self._findings):
            self._plan()
        order = ("error", "warning", "note")
        found = dict.fromkeys(self._findings)
        return CheckRecord(findings=sorted(found, key=lambda finding: order.index(finding.severity)))

    def _opened(self, opened: ExitStack) -> dict[str, Opened]:
        recipe = self._recipe
        sources: dict[str, Opened] = {}
        paths = {"base": recipe.base, **{name: recipe.agents[name].source for name in recipe.agent_names}}
        for name, path in paths.items():
            try:
                sources[name] = opened.enter_context(open_checkpoint(path))
            except MergeError as error:
                self._tell(name, error)
        return sources

    def _sources(self, base: Opened, agents: dict[str, Opened]) -> None:
        try:
            refuse_same_source({"base": base, **agents})
            prepared = prepare(base, agents, self._recipe.inputs, reads=reader_of(self._recipe), tell=self._tell)
        except MergeError as error:
            self._tell("base" if base.source in str(error) else "", error)
            return
        self._add("warning", prepared.warnings)
        self._add("note", _notes(prepared, base, agents))
        self._align(prepared)

    def _align(self, prepared: Prepared) -> None:
        """Agent by agent, so that each tells its own."""
        inputs, reads = self._recipe.inputs, reader_of(self._recipe)
        for name, agent in prepared.agents.items():
            unread = {(tensor, name) for tensor in prepared.base.specs if not reads(tensor, name)}
            hints = [hint for hint in prepared.hints if f"agent '{name}'" in hint]
            missing, extra = inputs.missing == "base", inputs.extra == "ignore"
            try:
                align(
                    prepared.base,
                    {name: agent},
                    missing_allowed=missing,
                    extra_allowed=extra,
                    excused=unread,
                    hints=hints,
                )
            except MergeError as error:
                self._tell(name, error)

    def _plan(self) -> None:
        """What remains: rules, importance, cost, and everything together."""
        try:
            with Plan(self._recipe) as plan:
                self._add("warning", plan.warnings)
                check_cost(plan)
        except MergeError as error:
            self._tell("", error)

    def _tell(self, name: str, error: MergeError) -> None:
        self._findings.append(Finding.of("error", _role(name), str(error)))

    def _add(self, severity: Severity, texts: Iterable[str]) -> None:
        """Each text names its source itself; a path stands for the source that was opened from it."""
        roles = {"base": self._recipe.base, **{n: a.source for n, a in self._recipe.agents.items()}}
        for text in texts:
            found = re.search(r"\bagent '([^']+)'", text)
            name = found[1] if found else next((n for n, path in roles.items() if text.startswith(path)), "")
            name = "base" if not name and re.match(r"(the )?base\b", text) else name
            self._findings.append(Finding.of(severity, _role(name), text))


def _notes(prepared: Prepared, base: Opened, agents: dict[str, Opened]) -> Iterator[str]:
    for tie in prepared.ties:
        yield f"{tie.who}: its {tie.head} repeats {tie.embedding}; that they are equal is checked when they are read"
    if prepared.tied is not None:
        yield f"base: {prepared.tied.head} is tied to {prepared.tied.embedding} and counts once"
    ours = _dtypes(base)
    for name, agent in agents.items():
        if (theirs := _dtypes(agent)) != ours:
            yield f"agent '{name}' stores {', '.join(theirs)}, the base {', '.join(ours)}"
    if prepared.tokenizer_from != "base":
        yield f"agent '{prepared.tokenizer_from}' gives the output its tokenizer and chat template"


def _dtypes(source: Opened) -> list[str]:
    return sorted({spec.dtype for spec in source.specs.values()})


def _role(name: str) -> str:
    return {"": "recipe", "base": "base"}.get(name, f"agent '{name}'")


def _cut(pattern: re.Pattern[str], text: str) -> tuple[str, str, str]:
    parts: list[Any] = pattern.split(text, maxsplit=1)
    return (parts[0], "expected", parts[1]) if len(parts) == 2 else (text, "", "")


def _second(parts: list[str]) -> str:
    return parts[1].strip() if len(parts) > 1 else ""
