"""From a recipe and prompts to what every agent damages, where, and what takes it out."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentmerge._version import __version__
from agentmerge.api import as_recipe
from agentmerge.engine.preflight import planned
from agentmerge.errors import DataError, Note, SourceError, Where
from agentmerge.files.os_errors import output_errors
from agentmerge.files.save import save
from agentmerge.harm import verdict
from agentmerge.harm.agent import Agent, Bench
from agentmerge.harm.questions import Encoder, answered, by_skill, owners_of
from agentmerge.harm.reading import Between, per_token
from agentmerge.harm.record import HarmRecord, SkillRow
from agentmerge.harm.remedies import best, together
from agentmerge.importance.data import sha256_of
from agentmerge.importance.prepare import check_model, check_tokenizer, settings_of, torch_file
from agentmerge.progress import Silent
from agentmerge.tensors import Block

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentmerge.engine.plan import Plan
    from agentmerge.harm.model import Model
    from agentmerge.harm.options import HarmOptions
    from agentmerge.harm.reading import Weights
    from agentmerge.harm.record import HarmRow, PlaceRow, RemedyRow
    from agentmerge.harm.remedies import Remedy
    from agentmerge.importance.data import Example
    from agentmerge.progress import Watch
    from agentmerge.recipe import Recipe
    from agentmerge.sources.source import Source
    from agentmerge.tensors import Array

FEW = 16
"""Prompts of a skill below which a note says so."""
UNLIKELY = -1.0
"""Nats of a token, below which the base hardly gives these answers."""


def measure_harm(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    prompts: Path,
    options: HarmOptions,
    *,
    own: Mapping[str, Sequence[str]] | None = None,
    watch: Watch | None = None,
) -> HarmRecord:
    """What each agent of a recipe damages of what the base could do, where that lies, and what takes it out.

    drop[t, skill] = mean over n prompts x of (log p_base(y | x) - log p_t(y | x)) * min(1, 16 / |y|)     nats an answer

    with y the base's own greedy answer to x, or the one that the file has. (With y drawn from the base it would be an
    estimate of the KL divergence of the two; greedy answers have less noise and are what is scored.) An agent is
    harmful where a skill that is not its own has a drop above `options.limit` that is above 0 beyond noise. Where it
    is, its drop is put down to places of the model (`Model.trace`), and lower weights and skipped places are measured,
    each on the base with this agent alone: what is left of the drop, and what stays of the agent's own answers.

    Args:
        recipe: whose base and agents are measured; its method, weights and rules count for nothing.
        prompts: JSON lines of {"prompt": ..., "skill": ..., "response": ...}; skill and response may be left out.
        options: how much is asked, and from when on it is damage.
        own: skills by agent that was trained on them; an agent that is not named has the skill of its own name.
        watch: told of the progress, in tokens.

    Raises:
        MergeError: whatever is wrong with the sources, the prompts or the settings.
    """
    checked = as_recipe(recipe)
    asked = by_skill(prompts, options.examples)
    owners = owners_of(asked, checked.agent_names, own or {})
    torch = torch_file(options)
    settings = settings_of(options, torch)
    with planned(checked) as plan:
        folder = plan.family.base.folder.path
        check_model(plan.family.base)
        check_tokenizer(folder)
        model = torch.Model(folder, settings.device, settings.dtype, options.batch_tokens)
        encoder = Encoder(torch.load_tokenizer_of(folder), prompts, options)
        bench = _bench(model, encoder, asked, owners, len(checked.agents), watch or Silent())
        found = _measured(plan, bench)
    return HarmRecord(
        base=checked.base,
        agents=list(checked.agent_names),
        data=str(prompts),
        sha256=sha256_of(prompts),
        limit=options.limit,
        beyond=bench.beyond,
        settings=settings,
        skills=(skills := _skill_rows(bench)),
        lengths=found.lengths,
        rows=found.rows,
        places=found.places,
        remedies=found.remedies,
        verdict=verdict.judge(found.rows, found.remedies, options.limit),
        change=together(found.chosen, bench.places.values()),
        versions={"agentmerge": __version__, **torch.VERSIONS},
        warnings=[str(note) for note in (*_notes(skills, str(prompts)), *found.notes)],
    )


def _bench(
    model: Model,
    encoder: Encoder,
    asked: Mapping[str, Sequence[Example]],
    owners: Mapping[str, Sequence[str]],
    agents: int,
    watch: Watch,
) -> Bench:
    """The base's answers and what it makes of them."""
    model.become(Between())
    skills = {skill: answered(found, encoder, model.answers) for skill, found in asked.items()}
    empty = [skill for skill, examples in skills.items() if not examples]
    if empty:
        found = f"{encoder.path}: no prompt of skill '{empty[0]}' has an answer that fits --max-length"
        todo = "Give other prompts, or a larger --max-length."
        raise SourceError(found, todo=todo, where=Where(path=str(encoder.path)))
    comparisons = sum(agents - len(owners[skill]) for skill in skills)
    return Bench(
        model=model,
        encoder=encoder,
        asked=asked,
        skills=skills,
        base={skill: model.read(examples) for skill, examples in skills.items()},
        owners=owners,
        beyond=verdict.beyond(comparisons),
        watch=watch,
    )


@dataclass(frozen=True)
class _Found:
    """What every agent gave."""

    lengths: dict[str, float] = field(default_factory=dict)
    rows: list[HarmRow] = field(default_factory=list)
    places: list[PlaceRow] = field(default_factory=list)
    remedies: list[RemedyRow] = field(default_factory=list)
    chosen: dict[str, Remedy | None] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)


def _measured(plan: Plan, bench: Bench) -> _Found:
    """Every agent in turn: one is held at a time."""
    found = _Found()
    for name in plan.names:
        with _named(plan.family.agents[name]):
            agent = Agent(bench, name, _weights(plan, name, bench.model))
            found.rows.extend(agent.rows)
            where, tried = agent.measure()
        found.lengths[name] = sqrt(sum(agent.energy.values()))
        found.places.extend(where)
        found.remedies.extend(row for _, row in tried)
        found.notes.extend(agent.notes)
        if agent.harmed:
            taken = best([row for _, row in tried])
            found.chosen[name] = next((remedy for remedy, row in tried if row is taken), None)
    return found


@contextmanager
def _named(source: Source) -> Iterator[None]:
    """Errors of what is done inside say whose they are."""
    try:
        yield
    except (DataError, SourceError) as error:
        raise error.located(source.where).named() from error


def _weights(plan: Plan, name: str, model: Model) -> Weights:
    """An agent as a merge reads it, in the base's form, loaded as the base is: by way of a folder of its own."""
    base, agent = plan.family.base, plan.family.agents[name]
    with (
        tempfile.TemporaryDirectory(prefix="agentmerge-harm-") as scratch,
        output_errors(Path(scratch), "Point TMPDIR to a disk with room for one agent."),
    ):
        for beside in ("config.json", "generation_config.json"):
            if (base.folder.path / beside).exists():
                shutil.copyfile(base.folder.path / beside, Path(scratch) / beside)
        save(Path(scratch), {spec: _array(agent if spec in agent.specs else base, spec) for spec in base.specs})
        found = model.weights(Path(scratch))
    model.check(found, agent.where)
    return found


def _array(source: Source, name: str) -> Array:
    spec = source.specs[name]
    return source.weights.read(Block(spec, 0, spec.elements)).reshape(spec.shape)


def _skill_rows(bench: Bench) -> list[SkillRow]:
    return [
        SkillRow(
            skill=skill,
            prompts=len(examples),
            tokens=sum(len(one.response) for one in examples),
            given=sum(bool(one.response) for one in bench.asked[skill]),
            likelihood=per_token(bench.base[skill], examples),
            owners=list(bench.owners[skill]),
        )
        for skill, examples in bench.skills.items()
    ]


def _notes(skills: Sequence[SkillRow], path: str) -> list[Note]:
    """What is to be said of the prompts."""
    few = [row.skill or "no name" for row in skills if row.prompts < FEW]
    strange = [row.skill or "no name" for row in skills if row.likelihood < UNLIKELY]
    notes, where = [], Where(path=path)
    if few:
        found = f"skills with fewer than {FEW} prompts: {', '.join(few)}: only great damage shows there."
        notes.append(Note(found, "Give more.", where=where))
    if strange:
        found = f"the base itself hardly gives these answers: {', '.join(strange)}."
        notes.append(Note(found, "Give its own, or none: then it answers itself.", where=where))
    return notes
