"""BM25 over a local corpus, by the library bm25s."""

from __future__ import annotations

import json
import os
import shutil
from array import array
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from agentmerge.errors import EvalError, Problem, Where, shown
from agentmerge.eval.data import sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORM = '{"title": ..., "text": ...} or {"contents": ...} on every line'
INSTALL = "pip install bm25s"
SAID = "corpus.json"
"""In an index's folder: what it is of."""


@dataclass(frozen=True)
class Bm25:
    """Finds the passages of a JSON lines file that share rare words with a query.

    Robertson's BM25 in Lucene's form, English stop words left out, no stemming. Passages stay on the disk; of each the
    place of its line is kept, and of all the index: about as large as the text.

    Reference:
        Lù, "BM25S: Orders of magnitude faster lexical search via eager sparse scoring",
        https://arxiv.org/abs/2407.03618.
    """

    corpus: Path
    index: Path | None
    """A folder that the index is kept in and read from; None builds it in memory every time."""
    k1: float
    b: float

    @classmethod
    def problems(cls, corpus: Path) -> list[Problem]:
        """A corpus that is not there, and the library."""
        found = []
        if not corpus.is_file():
            todo = "Name the file with --set search.corpus=FILE, or a server with search.endpoint=URL."
            found.append(Problem(f"search: no corpus {corpus}", FORM, todo, Where(path=str(corpus))))
        if find_spec("bm25s") is None:
            found.append(Problem("search: searching a local corpus needs bm25s", todo=f"{INSTALL}."))
        return found

    def search(self, query: str, count: int) -> list[str]:
        """The best passages; one that shares no word with the query is none."""
        bm25s = _library()
        tokens = bm25s.tokenize(query, stopwords="en", show_progress=False)
        most = min(count, len(self._starts))
        places, scores = self._engine.retrieve(tokens, k=most, show_progress=False, backend_selection="numpy")
        found = sorted(
            (-float(score), int(place)) for place, score in zip(places[0], scores[0], strict=True) if score > 0
        )
        return [self._passage(place) for _, place in found]

    @cached_property
    def sha256(self) -> str:
        """Of the corpus."""
        return sha256_of(self.corpus)

    @property
    def size(self) -> int:
        """Passages."""
        return len(self._starts)

    @cached_property
    def _starts(self) -> array[int]:
        """Where each passage's line begins in the file."""
        starts, place = array("Q"), 0
        with self.corpus.open("rb") as file:
            for line in file:
                if line.strip():
                    starts.append(place)
                place += len(line)
        if not starts:
            raise EvalError(f"{self.corpus}: no passages", expected=FORM, where=Where(path=str(self.corpus)))
        return starts

    @cached_property
    def _engine(self) -> Any:
        if self.index is not None and (self.index / SAID).is_file():
            return self._loaded(self.index)
        bm25s = _library()
        engine = bm25s.BM25(method="lucene", k1=self.k1, b=self.b)
        engine.index(bm25s.tokenize(list(self._passages()), stopwords="en", show_progress=False), show_progress=False)
        if self.index is not None:
            self._save(engine, self.index)
        return engine

    def _loaded(self, folder: Path) -> Any:
        said = json.loads((folder / SAID).read_bytes())
        if said != self._identity:
            todo = "Remove the folder, or name another one."
            where = Where(path=str(folder))
            raise EvalError(
                f"{folder}: an index of {said}", expected=f"one of {self._identity}", todo=todo, where=where
            )
        return _library().BM25.load(str(folder), mmap=True, show_progress=False)

    def _save(self, engine: Any, folder: Path) -> None:
        """Write the index beside its place, then rename it: a killed run leaves none that looks whole."""
        made = folder.with_name(f"{folder.name}.{os.getpid()}")
        engine.save(str(made), show_progress=False)
        (made / SAID).write_text(json.dumps(self._identity))
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)

    @property
    def _identity(self) -> dict[str, Any]:
        return {"sha256": self.sha256, "passages": self.size, "k1": self.k1, "b": self.b}

    def _passages(self) -> Iterator[str]:
        with self.corpus.open("rb") as file:
            yield from (self._text(line) for line in file if line.strip())

    def _passage(self, place: int) -> str:
        with self.corpus.open("rb") as file:
            file.seek(self._starts[place])
            return self._text(file.readline())

    def _text(self, line: bytes) -> str:
        try:
            row = json.loads(line)
            return str(row["contents"]) if "contents" in row else f"{row['title']}\n{row['text']}"
        except (ValueError, KeyError, TypeError):
            where = Where(path=str(self.corpus))
            raise EvalError(f"{self.corpus}: a line is {shown(line)}", expected=FORM, where=where) from None


def _library() -> Any:
    import bm25s

    return bm25s
