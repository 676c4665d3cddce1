"""The prompts of a file by skill, as tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentmerge.errors import RecipeError, SourceError, Where, did_you_mean
from agentmerge.importance.data import read_examples
from agentmerge.importance.tokens import encode_one, encode_prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from agentmerge.harm.options import HarmOptions
    from agentmerge.importance.data import Example
    from agentmerge.importance.tokens import Tokenizer, TokenSequence


def by_skill(path: Path, wanted: int) -> dict[str, list[Example]]:
    """The first examples of every skill.

    Raises:
        SourceError: the file can't be read, a line is no prompt, or there is none.
    """
    found: dict[str, list[Example]] = {}
    for example in read_examples(path, answered=False):
        held = found.setdefault(example.skill, [])
        if len(held) < wanted:
            held.append(example)
    if not found:
        raise SourceError(f"{path}: the file has no prompt", todo="Give other data.", where=Where(path=str(path)))
    return found


def owners_of(skills: Iterable[str], agents: Sequence[str], own: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Who was trained on which skill: an agent on those that are said to be its own, else on the one of its name.

    Args:
        skills: of the file.
        agents: of the recipe.
        own: skills by agent.

    Raises:
        RecipeError: no such agent or skill.
    """
    known = list(skills)
    for agent, said in own.items():
        for word, names, what in ((agent, agents, "agent"), *((skill, known, "skill") for skill in said)):
            if word not in names:
                hint = did_you_mean(word, filter(None, names)).strip()
                raise RecipeError(f"--own {agent}: no {what} '{word}'", todo=hint, where=Where(path="own"))
    return {skill: [agent for agent in agents if skill in own.get(agent, (agent,))] for skill in known}


@dataclass(frozen=True)
class Encoder:
    """Prompts and answers as tokens of the base's tokenizer."""

    tokenizer: Tokenizer
    path: Path
    """Of the data, for messages."""
    options: HarmOptions

    def given(self, example: Example) -> TokenSequence | None:
        """An example with its response; None where that leaves no room for a prompt."""
        where, options = f"{self.path}:{example.line}", self.options
        return encode_one(example, self.tokenizer, where, options.max_length, options.chat)

    def prompt(self, example: Example) -> TokenSequence:
        """The prompt alone, cut so that an answer of `new_tokens` fits."""
        room = max(self.options.max_length - self.options.new_tokens, 1)
        return encode_prompt(example, self.tokenizer, f"{self.path}:{example.line}", room, self.options.chat)


def answered(
    examples: Sequence[Example],
    encoder: Encoder,
    answer: Callable[[Sequence[tuple[int, ...]], int], list[tuple[int, ...]]],
    *,
    given: bool = True,
) -> tuple[TokenSequence, ...]:
    """Prompts with their answers; examples whose answer leaves no room, or has no token, are left out.

    Args:
        examples: of one skill.
        encoder: of texts.
        answer: makes the answers that the file does not have, of so many tokens at most.
        given: whether those that it has are taken.
    """
    have = {i: encoder.given(one) for i, one in enumerate(examples) if given and one.response}
    asked = {i: encoder.prompt(one) for i, one in enumerate(examples) if i not in have}
    prompts, longest = [one.prompt for one in asked.values()], encoder.options.new_tokens
    made = dict(zip(asked, answer(prompts, longest) if prompts else (), strict=True))
    every = {**have, **{i: replace(one, response=made[i]) for i, one in asked.items()}}
    return tuple(one for i in sorted(every) if (one := every[i]) is not None and one.response)
