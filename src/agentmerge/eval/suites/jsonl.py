"""The user's own prompts: JSON lines with a prompt and what a right answer is, scored as the settings say."""

from __future__ import annotations

import re
from pathlib import Path  # noqa: TC003 - pydantic reads it at run time
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from agentmerge.errors import EvalError, Problem, Where, shown
from agentmerge.eval.data import read_rows, sha256_of
from agentmerge.eval.request import Message, Request
from agentmerge.eval.suite import Cell, Column, DataFile, Item, SampledSettings, Suite
from agentmerge.eval.suites.own_function import load_function

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.eval.request import JSON
    from agentmerge.eval.suite import Conversation

WAYS = ("exact", "substring", "regex")


class JsonLinesSettings(SampledSettings):
    """Of the suite `jsonl`."""

    file: Path | None = None
    """JSON lines: prompt (text) or messages (list of role and content), answer (text or list of texts, empty only for
    exact), and where wanted id and group."""
    scoring: str = "exact"
    """exact, substring (an answer stands in the text), regex (an answer, as a pattern, is found in the text), or a
    Python function as FILE.py:NAME or MODULE:NAME, called with text and row, which returns 0 to 1."""
    ignore_case: bool = False
    """For exact, substring and regex."""
    samples: int = Field(default=1, ge=1)
    """Answers to each prompt; their mean counts."""
    chat: bool = True
    """Whether a prompt gets the model's chat template; else the model goes on with it as it stands."""
    system: str = ""
    """A system message before every prompt that is text; "" is none."""
    stop: tuple[str, ...] = ()
    """Texts before which an answer ends."""
    name: str = "own prompts"
    """What the column is called."""


class JsonLines(Suite):
    """Prompts of a file."""

    name = "jsonl"
    domain = "own"
    settings_type = JsonLinesSettings
    settings: JsonLinesSettings

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}

    def requires(self) -> list[Problem]:
        """The file, and the function where one scores."""
        file, where = self.settings.file, Where(path="jsonl.file")
        if file is None:
            return [Problem("jsonl: no file is given", todo="Say --set jsonl.file=PROMPTS.jsonl.", where=where)]
        if not file.is_file():
            return [Problem(f"jsonl: {file}: no such file", where=where)]
        try:
            self._function()
        except EvalError as error:
            return list(error.problems)
        return []

    def items(self) -> list[Item]:
        """A line of the file each, known by its id or its number."""
        rows = read_rows(self._file, () if self._function() else ("answer",))
        items = [Item(str(row.get("id", number)), str(row.get("group", "")), row) for number, row in enumerate(rows)]
        for number, item in enumerate(items):
            self._check(item, number + 1)
        if len({item.id for item in items}) < len(items):
            raise EvalError(f"{self._file}: an id stands twice", expected="every id once")
        return items

    def converse(self, item: Item) -> Conversation:
        """All samples at once; the output is their texts."""
        wanted = self.settings.sampling(self.settings.stop)
        chat = self._messages(item.data)
        prompt = None if chat else item.data["prompt"]
        responses = yield [Request(chat, prompt, wanted, sample) for sample in range(self.settings.samples)]
        return [response.text for response in responses]

    def score(self, item: Item, output: JSON) -> dict[str, Cell]:
        """The mean over samples."""
        worth = [self._worth(text, item.data) for text in output]
        return {"score": Cell(sum(worth) / len(worth))}

    @property
    def columns(self) -> tuple[Column, ...]:
        """One over all prompts and, where there are several groups, one for each."""
        groups = sorted({item.group for item in self.items()})
        own = [Column(f"jsonl_{group or 'others'}", "score", group or "others", (group,)) for group in groups]
        return (Column("jsonl", "score", self.settings.name), *(own if len(groups) > 1 else ()))

    def data_files(self) -> list[DataFile]:
        """The file."""
        file = self._file
        return [DataFile(file.name, "the user's own", sha256_of(file), len(read_rows(file, ())))]

    @property
    def _file(self) -> Path:
        if self.settings.file is None:
            raise EvalError(*self.requires())
        return self.settings.file

    def _function(self) -> Any:
        """The user's own scoring; None where it is one of ours."""
        return None if self.settings.scoring in WAYS else load_function(self.settings.scoring, WAYS)

    def _check(self, item: Item, line: int) -> None:
        """A prompt or messages, and patterns that are some."""
        row, place = item.data, f"{self._file}: object {line}"
        if not isinstance(row.get("prompt"), str) and not _is_chat(row.get("messages")):
            found = f"{place}: prompt is {shown(row.get('prompt'))}"
            raise EvalError(found, expected="a text, or messages: a list of objects with role and content")
        if self.settings.scoring in WAYS:
            self._check_answers(row["answer"], place)
        for pattern in _answers(row) if self.settings.scoring == "regex" else ():
            try:
                re.compile(pattern)
            except re.error as error:
                raise EvalError(f"{place}: answer {pattern!r} is no pattern: {error}") from None

    def _check_answers(self, answer: JSON, place: str) -> None:
        """Answers that can be right and can be wrong: an empty one stands in every text, of none no text is right."""
        answers = answer if isinstance(answer, list) else [answer]
        empty = not answers or None in answers
        if self.settings.scoring != "exact":
            empty = empty or any(not str(one).strip() for one in answers)
        if empty:
            found = f"{place}: answer is {shown(answer)}"
            expected = "a text, or a list of texts, none of them empty"
            todo = "Put in the right answer or leave the line out; where saying nothing is right, scoring is exact."
            raise EvalError(found, expected=expected, todo=todo)

    def _messages(self, row: Mapping[str, JSON]) -> tuple[Message, ...] | None:
        if "messages" in row:
            return tuple(Message(one["role"], one["content"]) for one in row["messages"])
        if not self.settings.chat:
            return None
        system = (Message("system", self.settings.system),) if self.settings.system else ()
        return (*system, Message("user", row["prompt"]))

    def _worth(self, text: str, row: Mapping[str, JSON]) -> float:
        way, fold = self.settings.scoring, self.settings.ignore_case
        if way not in WAYS:
            return _share(_called(self._function(), text, row, way), way)
        if way == "regex":
            return float(any(re.search(p, text, re.IGNORECASE if fold else 0) for p in _answers(row)))
        said, wanted = text.strip(), [answer.strip() for answer in _answers(row)]
        if fold:
            said, wanted = said.casefold(), [answer.casefold() for answer in wanted]
        return float(said in wanted if way == "exact" else any(answer in said for answer in wanted))


def _answers(row: Mapping[str, JSON]) -> list[str]:
    answer = row["answer"]
    return [str(one) for one in answer] if isinstance(answer, list) else [str(answer)]


def _is_chat(messages: JSON) -> bool:
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(one, dict) and {"role", "content"} <= one.keys() for one in messages)
    )


def _called(function: Any, text: str, row: Mapping[str, JSON], name: str) -> Any:
    """What the user's function returns; it may raise anything."""
    try:
        return function(text, dict(row))
    except Exception as error:
        found = f"{name}: fails with {error!r} where text is {shown(text)} and row is {shown(dict(row))}"
        expected = "a number between 0 and 1, or True or False, for whatever a model says"
        todo = "Mend it and run the same command with --score-only: all answers are stored."
        raise EvalError(found, expected=expected, todo=todo) from error


def _share(value: Any, function: str) -> float:
    """What the user's function returned, as a number of 0 to 1."""
    if not isinstance(value, bool | int | float) or not 0 <= value <= 1:
        raise EvalError(f"{function}: returned {shown(value)}", expected="a number between 0 and 1, or True or False")
    return float(value)
