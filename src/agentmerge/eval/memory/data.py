"""Which files the samples come from: MemAgent's own where they lie in the data folder, else the sets' dev files."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from agentmerge.errors import Problem, Where
from agentmerge.eval.data import Hub, Need, sha256_of
from agentmerge.eval.memory.documents import HOTPOTQA_FORM, SQUAD_FORM, Pool, context_of, read_hotpotqa, read_squad
from agentmerge.eval.memory.lengths import Filler, costs_of
from agentmerge.eval.memory.samples import READY_FORM, by_count, by_tokens, questions_of, ready_items
from agentmerge.eval.suite import DataFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agentmerge.eval.suite import Item
    from agentmerge.eval.tokenizer import TextTokenizer

READY = "BytedTsinghua-SIA/hotpotqa"
READY_ORIGIN = f"https://huggingface.co/datasets/{READY}"


@dataclass(frozen=True)
class Source:
    """A question answering set that samples are made of."""

    name: str
    file: str
    """Its dev set."""
    origin: str
    form: str
    ready: str
    """How MemAgent calls the samples of one length."""
    read: Callable[[Path], Pool]


HOTPOTQA = Source(
    "hotpotqa",
    "hotpot_dev_distractor_v1.json",
    "https://hotpotqa.github.io (CC BY-SA 4.0)",
    HOTPOTQA_FORM,
    "eval_{size}.json",
    read_hotpotqa,
)
SQUAD = Source(
    "squad",
    "dev-v2.0.json",
    "https://rajpurkar.github.io/SQuAD-explorer (CC BY-SA 4.0)",
    SQUAD_FORM,
    "eval_qa_1_{size}.json",
    read_squad,
)


@dataclass(frozen=True)
class Length:
    """Samples of one size: documents of HotpotQA, tokens of SQuAD."""

    source: Source
    size: int

    @property
    def group(self) -> str:
        """The name of its samples' group."""
        return f"{self.source.name}-{self.size}"

    @property
    def ready(self) -> str:
        """The file of MemAgent's samples."""
        return self.source.ready.format(size=self.size)

    @property
    def need(self) -> Need:
        """That file, to be fetched; the hub is known to have those of HotpotQA."""
        hub = Hub(READY, file=self.ready) if self.source is HOTPOTQA else None
        return Need("memory", self.ready, READY_ORIGIN, ("context", "input"), hub)


class Data:
    """All samples of a run; their contexts are put together one by one, since all at once are gigabytes."""

    def __init__(
        self, folder: Path | None, lengths: Sequence[Length], samples: int, seed: int, tokenizer: TextTokenizer
    ) -> None:
        """Nothing is read yet.

        Args:
            folder: what --data-dir names.
            lengths: to be made.
            samples: of each length, where they are made here.
            seed: of the questions, and of the documents beside theirs.
            tokenizer: that lengths in tokens are counted by.
        """
        self._folder, self._lengths, self._samples, self._seed = folder, lengths, samples, seed
        self._tokenizer = tokenizer
        self._pools: dict[str, Pool] = {}

    def problems(self) -> list[Problem]:
        """A data folder that isn't named, and dev files that are needed and not there."""
        if self._folder is None:
            return [Problem("memory: no --data-dir is given", todo="Give the folder of the data files.")]
        needed = dict.fromkeys(length.source for length in self._lengths if not self._path(length.ready))
        return [self._missing(source) for source in needed if not self._path(source.file)]

    @cached_property
    def items(self) -> tuple[Item, ...]:
        """Every sample, length by length.

        Raises:
            EvalError: a file is something else than expected, or has too few documents.
        """
        return tuple(item for length in self._lengths for item in self._items_of(length))

    def context(self, item: Item) -> str:
        """The text that an item is about."""
        if "context" in item.data:
            return str(item.data["context"])
        source = next(length.source for length in self._lengths if length.group == item.group)
        documents = self._pool(source).documents
        return context_of(documents[place] for place in item.data["documents"])

    def files(self) -> list[DataFile]:
        """What was read for `items`."""
        ready = [length for length in self._lengths if self._path(length.ready)]
        found = [self._file(length.ready, READY_ORIGIN, self._count(length)) for length in ready]
        made = dict.fromkeys(length.source for length in self._lengths if length not in ready)
        sources = [self._file(source.file, source.origin, len(self._pool(source).questions)) for source in made]
        return [*found, *sources]

    def _items_of(self, length: Length) -> list[Item]:
        if path := self._path(length.ready):
            has_pool = self._path(length.source.file) is not None
            return ready_items(path, length.group, self._pool(length.source) if has_pool else None)
        pool, chosen = self._pool(length.source), self._chosen(length.source)
        if length.source is HOTPOTQA:
            return by_count(pool, length.group, chosen, length.size, self._seed)
        filler = Filler(pool, self._costs, self._tokenizer)
        return by_tokens(pool, length.group, chosen, length.size, self._seed, filler, self._tokenizer)

    def _pool(self, source: Source) -> Pool:
        if source.name not in self._pools:
            path = self._path(source.file)
            assert path is not None
            self._pools[source.name] = source.read(path)
        return self._pools[source.name]

    @cached_property
    def _costs(self) -> list[int]:
        return costs_of(self._pool(SQUAD), self._tokenizer)

    def _chosen(self, source: Source) -> Sequence[int]:
        """Which questions are asked at every length that is made: those of a file of MemAgent's, else evenly drawn."""
        for length in self._lengths:
            path = self._path(length.ready) if length.source is source else None
            if path and (asked := questions_of(path, self._pool(source))):
                return asked[: self._samples]
        total = len(self._pool(source).questions)
        return sorted(random.Random(self._seed).sample(range(total), min(self._samples, total)))

    def _path(self, name: str) -> Path | None:
        path = None if self._folder is None else self._folder / name
        return path if path is not None and path.is_file() else None

    def _missing(self, source: Source) -> Problem:
        ready = ", ".join(length.ready for length in self._lengths if length.source is source)
        return Problem(
            f"{source.file} is not in {self._folder}",
            expected=source.form,
            todo=f"It comes from {source.origin}; MemAgent's own samples {ready} of {READY_ORIGIN} do as well "
            f"({READY_FORM}).",
            where=Where(path=str(self._folder)),
        )

    def _count(self, length: Length) -> int:
        return sum(item.group == length.group for item in self.items)

    def _file(self, name: str, origin: str, items: int) -> DataFile:
        path = self._path(name)
        assert path is not None
        return DataFile(name, origin, sha256_of(path), items)
