"""Who is who among evaluated models: what the user says, else what the merges' own records say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentmerge.errors import EvalError, Problem, SurveyError, Where
from agentmerge.eval.results import load_results
from agentmerge.record import RECORD, MergeRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.eval.compare.rows import RoleName
    from agentmerge.eval.results import Results


@dataclass(frozen=True)
class Entry:
    """A row to be: a model's name and role, and what was found of it."""

    name: str
    role: RoleName
    results: Results

    @property
    def merge(self) -> MergeRecord | None:
        """The record of the merge that made it, where it still lies beside the weights."""
        path = self.results.record.model.path
        if path is None or not (Path(path) / RECORD).is_file():
            return None
        try:
            return MergeRecord.load(path)
        except SurveyError:  # of another version: scores are what counts here
            return None


def entries_of(
    folders: Sequence[Path],
    base: Path | None = None,
    agents: Mapping[str, Path] | None = None,
    merged: Mapping[str, Path] | None = None,
) -> list[Entry]:
    """Base, agents and merged models, in this order.

    A folder without a role: a model that agentmerge merged is merged; one whose weights a merge names as its base or an
    agent is that; a folder called "base" is the base; any other is an agent. It goes by its folder's name, an agent
    that a merge names by that one.

    Args:
        folders: of evaluations, roles to be found.
        base: the base's evaluation.
        agents: evaluations by agent's name.
        merged: evaluations by the name of the merged model.

    Raises:
        EvalError: one can't be read, two go by one name, two bases, or nothing at all.
    """
    given: list[tuple[str, RoleName, Path]] = [] if base is None else [("base", "base", base)]
    given += [(name, "agent", folder) for name, folder in (agents or {}).items()]
    given += [(name, "merged", folder) for name, folder in (merged or {}).items()]
    entries = [Entry(name, role, load_results(folder)) for name, role, folder in given]
    loose = [load_results(folder) for folder in folders]
    sources = _sources([*(entry.results for entry in entries), *loose])
    entries += [_guessed(results, sources, base is not None) for results in loose]
    _check(entries)
    order = ("base", "agent", "merged")
    return sorted(entries, key=lambda entry: order.index(entry.role))


def _guessed(results: Results, sources: Mapping[str, str], has_base: bool) -> Entry:
    name = results.folder.resolve().name
    if results.record.model.merge is not None:
        return Entry(name, "merged", results)
    known = {found for source, found in sources.items() if _is(source, results)}
    if len(known) == 1:
        found = known.pop()
        return Entry(found, "base" if found == "base" else "agent", results)
    return Entry(name, "base" if name == "base" and not has_base else "agent", results)


def _sources(every: Sequence[Results]) -> dict[str, str]:
    """What merges read: "base" or the agent's name by what the recipe wrote for it."""
    found: dict[str, str] = {}
    for results in every:
        merge = results.record.model.merge or {}
        record = Entry("", "merged", results).merge
        base = merge.get("base") or (record.recipe.get("base") if record else None)
        if isinstance(base, str):
            found[base] = "base"
        agents: Any = merge.get("agents") or {}
        for name, agent in agents.items():
            source = agent.get("source") if isinstance(agent, dict) else agent
            if isinstance(source, str):
                found[source] = name
    return found


def _is(source: str, results: Results) -> bool:
    """Whether a recipe's source is the model that was evaluated: the same folder, or the same id or last name."""
    model = results.record.model
    if source == model.name or (model.path is not None and Path(source).resolve() == Path(model.path)):
        return True
    return Path(source).name == Path(model.path or model.name).name


def _check(entries: Sequence[Entry]) -> None:
    problems = []
    if not entries:
        raise EvalError("nothing to compare", expected="folders that `agentmerge eval --out` wrote")
    for name in dict.fromkeys(entry.name for entry in entries):
        folders = [str(entry.results.folder) for entry in entries if entry.name == name]
        if len(folders) > 1:
            todo = "Name them: --agent NAME=DIR, --merged NAME=DIR."
            problems.append(
                Problem(
                    f"'{name}' is the name of {', '.join(folders)}", "a name for each", todo, Where(path=folders[1])
                )
            )
    if sum(entry.role == "base" for entry in entries) > 1 and not problems:
        names = [entry.name for entry in entries if entry.role == "base"]
        problems.append(Problem(f"{' and '.join(names)} are bases", "one base", "Say which: --base DIR."))
    if problems:
        raise EvalError(*problems)
