"""Question answering with a search engine, NQ and 2WikiMultiHopQA, after ZeroSearch."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from agentmerge.errors import Problem
from agentmerge.eval.data import sha256_of
from agentmerge.eval.request import Message, Request
from agentmerge.eval.search import scoring
from agentmerge.eval.search.bm25 import Bm25
from agentmerge.eval.search.loop import STOPS, Turn, prompt_of, search_loop
from agentmerge.eval.search.questions import NEED, ORIGIN, path_of, problems, read_questions
from agentmerge.eval.search.server import Dialect, SearchServer
from agentmerge.eval.suite import Cell, Column, DataFile, Item, SampledSettings, Suite
from agentmerge.eval.tokenizer import TextTokenizer
from agentmerge.eval.versions import version_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.eval.data import Need
    from agentmerge.eval.request import JSON
    from agentmerge.eval.search.retriever import Retriever
    from agentmerge.eval.suite import Conversation

LABELS = {"nq": "NQ", "2wikimultihopqa": "2Wiki"}
CORPUS = "corpus.jsonl"


class SearchSettings(SampledSettings):
    """Every choice of the suite `search`."""

    sets: tuple[str, ...] = tuple(LABELS)
    """Which questions; ZeroSearch's file has more of them."""
    style: Literal["continue", "chat"] = "continue"
    """Whether passages go into the model's own turn, which it goes on with, as ZeroSearch does, or come as a message of
    the user, for servers that take nothing but chats."""
    turns: int = Field(default=5, ge=0)
    """Searches at most; after them only an answer counts."""
    passages: int = Field(default=5, ge=1)
    """For each search."""
    max_tokens: int = Field(default=1024, ge=1)
    """New tokens of a turn."""
    temperature: float = Field(default=0.7, ge=0)
    """Of every turn."""
    corpus: str = ""
    """JSON lines that BM25 searches; "" is corpus.jsonl in the data folder."""
    index: str = ""
    """A folder that BM25's index is kept in; "" builds it in memory."""
    k1: float = Field(default=0.9, ge=0)
    """BM25's, for how soon a word's count is saturated."""
    b: float = Field(default=0.4, ge=0, le=1)
    """BM25's, for how much a long passage is discounted."""
    endpoint: str = ""
    """The URL of a search server, instead of a corpus."""
    dialect: Dialect = "zerosearch"
    """What the server is asked in."""
    timeout: float = Field(default=60.0, gt=0)
    """Seconds that the server has."""
    tokenizer: str = ""
    """A folder with tokenizer.json and a chat template, for `continue`; "" takes the model's."""
    scoring: Literal["zerosearch", "exact"] = "zerosearch"
    """Which score stands in the tables first; both are computed and shown."""


class Search(Suite):
    """Open questions, with up to five searches each."""

    name = "search"
    domain = "search"
    settings_type = SearchSettings
    settings: SearchSettings

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "zerosearch": {},
        "exact": {"scoring": "exact"},
        "chat": {"style": "chat"},
    }

    def needs(self) -> Sequence[Need]:
        """ZeroSearch's questions; a set in a file of its own does as well."""
        return (NEED,)

    def requires(self) -> list[Problem]:
        """Questions, a corpus or a server, and with `continue` a tokenizer."""
        lacking = [] if self.settings.style == "chat" else TextTokenizer.problems(self._tokenizer_folder, self.name)
        if self.given.data_dir is None:
            return [*lacking, Problem("search: no --data-dir is given", todo="Give the folder of the data files.")]
        lacking += [found for name in self.settings.sets for found in problems(self.given.data_dir, name)]
        return lacking if self.settings.endpoint else [*lacking, *Bm25.problems(self._corpus)]

    def items(self) -> list[Item]:
        """Every question, set by set."""
        return [
            Item(f"{name}-{asked.id}", name, {"question": asked.text, "answers": list(asked.answers)})
            for name, path in self._paths.items()
            for asked in read_questions(path, name)
        ]

    def converse(self, item: Item) -> Conversation:
        """By ZeroSearch's loop."""
        head = prompt_of(item.data["question"])

        def search(query: str) -> list[str]:
            return self._retriever.search(query, self.settings.passages)

        return search_loop(lambda told: self._request(head, told), search, self.settings.turns)

    def score(self, item: Item, output: JSON) -> dict[str, Cell]:
        """Both kinds of exact match."""
        answer, right = output["answer"], item.data["answers"]
        return {
            "em_zerosearch": Cell(scoring.em_zerosearch(answer, right)),
            "em": Cell(scoring.exact_match(answer, right)),
        }

    @property
    def columns(self) -> tuple[Column, ...]:
        """Two for every set: the chosen score under the set's own name, and the other one."""
        both = {"zerosearch": ("em_zerosearch", "em"), "exact": ("em", "em_zerosearch")}[self.settings.scoring]
        names = {"em": "EM", "em_zerosearch": "EM of ZeroSearch"}
        first, second = both
        found = []
        for name in self.settings.sets:
            label = LABELS.get(name, name)
            found.append(Column(name, first, label, (name,)))
            found.append(Column(f"{name}-{second}", second, f"{label}, {names[second]}", (name,), counts=False))
        return tuple(found)

    def data_files(self) -> list[DataFile]:
        """Questions, and the corpus or server; not the tokenizer, which is the model's own and chooses no item."""
        found = [
            DataFile(path.name, ORIGIN, sha256_of(path), len(read_questions(path, name)))
            for name, path in self._paths.items()
        ]
        if self.settings.endpoint:
            found.append(DataFile(self.settings.endpoint, f"a server, asked as {self.settings.dialect} does", "", 0))
        else:
            corpus = Bm25(self._corpus, None, self.settings.k1, self.settings.b)
            found.append(DataFile(self._corpus.name, "corpus", corpus.sha256, corpus.size))
        return found

    def versions(self) -> dict[str, str]:
        """Of the library that searches."""
        version = None if self.settings.endpoint else version_of("bm25s")
        return {"bm25s": version} if version else {}

    def _request(self, head: str, told: Sequence[Turn]) -> Request:
        sampling = self.settings.sampling(STOPS)
        user = Message("user", head)
        if self.settings.style == "chat":
            turns = [(Message("assistant", turn.written), Message("user", turn.read.strip())) for turn in told]
            return Request((user, *(message for turn in turns for message in turn)), None, sampling)
        begin = self._tokenizer.chat_as_text([user]) if self._tokenizer.has_chat_template else head
        return Request.raw(begin + "".join(turn.written + turn.read for turn in told), sampling)

    @cached_property
    def _retriever(self) -> Retriever:
        settings = self.settings
        if settings.endpoint:
            return SearchServer(settings.endpoint, settings.dialect, settings.timeout)
        return Bm25(self._corpus, Path(settings.index) if settings.index else None, settings.k1, settings.b)

    @property
    def _paths(self) -> dict[str, Path]:
        assert self.given.data_dir is not None
        found = {name: path_of(self.given.data_dir, name) for name in self.settings.sets}
        return {name: path for name, path in found.items() if path is not None}

    @property
    def _corpus(self) -> Path:
        assert self.given.data_dir is not None
        return Path(self.settings.corpus) if self.settings.corpus else self.given.data_dir / CORPUS

    @property
    def _tokenizer_folder(self) -> str | None:
        return self.settings.tokenizer or self.given.tokenizer

    @cached_property
    def _tokenizer(self) -> TextTokenizer:
        return TextTokenizer(Path(self._tokenizer_folder or ""))
