"""A model's tokenizer, where texts are cut by tokens and chats are written out. Needs no torch and no transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentmerge.errors import EvalError, Problem, Where
from agentmerge.eval.data import sha256_of
from agentmerge.eval.suite import DataFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.eval.request import Message

FILE = "tokenizer.json"


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer.json, and the chat template beside it."""

    path: Path
    """The folder, or the file itself."""

    @classmethod
    def problems(cls, given: str | None, suite: str) -> list[Problem]:
        """Why there is none for a suite: nothing was given, no such file, or the library is missing."""
        from importlib.util import find_spec

        todo = f"A MODEL that is a folder brings its own; else name a folder with {FILE} by --tokenizer."
        if find_spec("tokenizers") is None:
            return [Problem("The library tokenizers is missing", todo="pip install tokenizers.")]
        if not given:
            return [Problem(f"{suite}: no tokenizer is known", todo=todo)]
        if not cls(Path(given)).file.is_file():
            where = Where(path=given)
            return [Problem(f"{suite}: no {FILE} in {given}", todo=todo, where=where)]
        return []

    @property
    def file(self) -> Path:
        """The tokenizer.json."""
        return self.path / FILE if self.path.is_dir() else self.path

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.file.parent

    @property
    def data_file(self) -> DataFile:
        """What the record says of it."""
        return DataFile(self.file.name, f"the tokenizer in {self.folder.name}", sha256_of(self.file), 1)

    def count(self, text: str) -> int:
        """How many tokens a text has, without special tokens of a beginning or end."""
        return len(self._library.encode(text, add_special_tokens=False).ids)

    def counts(self, texts: Sequence[str]) -> list[int]:
        """`count` of each."""
        return [len(found.ids) for found in self._library.encode_batch_fast(list(texts), add_special_tokens=False)]

    def cuts(self, text: str, size: int) -> list[int]:
        """Where to cut a text so that its pieces have `size` tokens each, but for the last.

        A character of which several tokens are parts stays whole and goes to the later piece.

        Returns:
            Places in the text in ascending order, its beginning and its end included.
        """
        found = self._library.encode(text, add_special_tokens=False)
        places = [found.token_to_chars(token)[0] for token in range(size, len(found.ids), size)]
        return [0, *places, len(text)]

    def without_middle(self, text: str, most: int) -> str:
        """A text cut to its first and last tokens, `most` in all; one that is not longer stays as it is."""
        found = self._library.encode(text, add_special_tokens=False)
        if len(found.ids) <= most:
            return text
        tail = len(found.ids) - (most + 1) // 2
        return text[: found.token_to_chars(most // 2)[0]] + text[found.token_to_chars(tail)[0] :]

    @property
    def has_chat_template(self) -> bool:
        """Whether the model was trained on chats, as far as its folder tells."""
        return self._template is not None

    def chat(self, messages: Sequence[Message]) -> str:
        """Messages as the text that the model was trained on, up to where its answer begins.

        Raises:
            EvalError: there is no template, or it refuses the messages.
        """
        where = Where(path=str(self.folder))
        if self._template is None:
            raise EvalError(f"{self.folder}: no chat template", where=where)
        plain = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return str(
                _environment()
                .from_string(self._template)
                .render(messages=plain, add_generation_prompt=True, tools=None, documents=None, **self._special_tokens)
            )
        except Exception as error:  # a template is a program of the model's own
            raise EvalError(f"{self.folder}: its chat template fails: {error}", where=where) from None

    def chat_as_text(self, messages: Sequence[Message]) -> str:
        """`chat` for a request of raw text: without the token of a beginning that the tokenizer puts there by itself.

        Raises:
            EvalError: as `chat`.
        """
        text, token = self.chat(messages), self._special_tokens.get("bos_token", "")
        twice = token and text.startswith(token) and self._begins_with(token)
        return text.removeprefix(token) if twice else text

    def _begins_with(self, token: str) -> bool:
        """Whether texts get this token before them: as the config says, else as tokenizer.json does."""
        told = self._config.get("add_bos_token")
        return told if isinstance(told, bool) else self._library.encode("").tokens[:1] == [token]

    @cached_property
    def _library(self) -> Any:
        import tokenizers

        try:
            found = tokenizers.Tokenizer.from_file(str(self.file))
        except Exception as error:  # the library raises nothing more special
            raise EvalError(f"{self.file}: can't be read: {error}", where=Where(path=str(self.file))) from None
        found.no_truncation()
        found.no_padding()
        return found

    @cached_property
    def _config(self) -> dict[str, Any]:
        path = self.folder / "tokenizer_config.json"
        try:
            found = json.loads(path.read_bytes()) if path.is_file() else {}
        except ValueError as error:
            raise EvalError(f"{path}: not JSON: {error}", where=Where(path=str(path))) from None
        return found if isinstance(found, dict) else {}

    @cached_property
    def _template(self) -> str | None:
        """The file chat_template.jinja wins over the config's own text, or its "default" where it has several."""
        path = self.folder / "chat_template.jinja"
        if path.is_file():
            return path.read_text(encoding="utf-8")
        found = self._config.get("chat_template")
        if isinstance(found, list):
            found = {entry["name"]: entry["template"] for entry in found}.get("default")
        return found if isinstance(found, str) else None

    @property
    def _special_tokens(self) -> dict[str, str]:
        named = {name: value for name, value in self._config.items() if name.endswith("_token")}
        texts = {name: value["content"] if isinstance(value, dict) else value for name, value in named.items()}
        return {name: text for name, text in texts.items() if isinstance(text, str)}


def _environment() -> Any:
    """What chat templates are written for, after transformers.

    `strftime_now` is left out: a prompt with today's date would be another request tomorrow, and templates that ask
    for it have a date of their own without it.
    """
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = refuse
    return environment
