"""Examples as tokens, cut to length."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from agentmerge.errors import RecipeError, SourceError, Where

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from agentmerge.importance.data import Example


class Tokenizer(Protocol):
    """What is asked of a tokenizer of transformers."""

    bos_token_id: int | None
    chat_template: Any

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any:
        """A mapping with "input_ids"."""

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> Any:
        """The text of a conversation."""


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One example as the model sees it."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    """The tokens whose likelihood counts."""
    line: int
    cut: bool
    """Whether tokens of the prompt were left out."""

    @property
    def tokens(self) -> int:
        """Prompt and response."""
        return len(self.prompt) + len(self.response)


@dataclass(frozen=True, slots=True)
class Corpus:
    """The examples that are used."""

    examples: tuple[TokenSequence, ...]
    skipped: int
    """Examples whose response alone is too long."""

    @property
    def tokens(self) -> int:
        """Prompts and responses."""
        return sum(example.tokens for example in self.examples)

    @property
    def sha256(self) -> str:
        """Of every token: it tells another tokenizer, template or cut."""
        lines = (f"{example.line} {example.prompt} {example.response}\n" for example in self.examples)
        return sha256("".join(lines).encode()).hexdigest()


def encode(
    examples: Iterable[Example], tokenizer: Tokenizer, path: Path, *, wanted: int, max_length: int, chat: bool
) -> Corpus:
    """The first `wanted` examples that fit.

    A prompt of messages, or any prompt with `chat`, goes through the tokenizer's chat template, up to where the answer
    begins. The response is tokenised by itself, as it was generated, and no end token is added: write it into the
    response (<|im_end|>) to have it count. Where both are longer than `max_length`, the prompt loses tokens on the
    left (a token for the beginning of text stays); a response that leaves no room for one token of prompt is skipped.

    Args:
        examples: in the file's order; read no further than needed.
        tokenizer: the agent's.
        path: of the data, for messages.
        wanted: how many.
        max_length: tokens of prompt and response together.
        chat: treat a plain prompt as one user message.

    Raises:
        SourceError: the template refuses a prompt, a text has no token, or nothing fits.
        RecipeError: the chat template that is needed is not there.
    """
    fitting: list[TokenSequence] = []
    skipped = 0
    for example in examples:
        if (encoded := encode_one(example, tokenizer, f"{path}:{example.line}", max_length, chat)) is None:
            skipped += 1
        else:
            fitting.append(encoded)
        if len(fitting) == wanted:
            break
    if not fitting:
        why = f"every response has {max_length} or more tokens" if skipped else "the file has no example"
        todo = "Give other data, or a larger --max-length."
        raise SourceError(f"{path}: nothing to use: {why}", todo=todo, where=Where(path=str(path)))
    return Corpus(tuple(fitting), skipped)


def encode_one(example: Example, tokenizer: Tokenizer, where: str, max_length: int, chat: bool) -> TokenSequence | None:
    """One example; None where its response leaves no room for a prompt."""
    if not example.response:
        return encode_prompt(example, tokenizer, where, max_length, chat)
    prompt = _prompt_ids(example, tokenizer, where, chat)
    response = _ids(tokenizer, example.response, special=False)
    if not prompt or not response:
        empty = f"{where}: the {'response' if prompt else 'prompt'} has no token"
        raise SourceError(empty, todo="Remove the line.", where=Where(path=where))
    room = max_length - len(response)
    if room < 1:
        return None
    return TokenSequence(_cut(prompt, room, tokenizer.bos_token_id), response, example.line, len(prompt) > room)


def encode_prompt(example: Example, tokenizer: Tokenizer, where: str, room: int, chat: bool) -> TokenSequence:
    """The prompt of an example, its last `room` tokens, without a response."""
    prompt = _prompt_ids(example, tokenizer, where, chat)
    if not prompt:
        raise SourceError(f"{where}: the prompt has no token", todo="Remove the line.", where=Where(path=where))
    return TokenSequence(_cut(prompt, room, tokenizer.bos_token_id), (), example.line, len(prompt) > room)


def _cut(prompt: tuple[int, ...], room: int, bos: int | None) -> tuple[int, ...]:
    """The last `room` tokens, after the token for the beginning of text where the prompt has one."""
    if len(prompt) <= room:
        return prompt
    head = prompt[:1] if prompt[0] == bos else ()
    return head + prompt[len(prompt) - (room - len(head)) :]


def _prompt_ids(example: Example, tokenizer: Tokenizer, where: str, chat: bool) -> tuple[int, ...]:
    prompt = example.prompt
    if isinstance(prompt, str) and not chat:
        return _ids(tokenizer, prompt, special=True)
    if not tokenizer.chat_template:
        lacking = f"{where}: a chat prompt, but the model has no chat template"
        raise RecipeError(lacking, todo="Give the prompt as plain text.", where=Where(path=where))
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program of the model's own
        refused = f"{where}: the model's chat template refuses the prompt: {error}"
        raise SourceError(refused, where=Where(path=where)) from None
    return _ids(tokenizer, text, special=False)


def _ids(tokenizer: Tokenizer, text: str, *, special: bool) -> tuple[int, ...]:
    return tuple(int(token) for token in tokenizer(text, add_special_tokens=special)["input_ids"])
