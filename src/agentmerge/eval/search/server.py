"""A search server: ZeroSearch's or Search-R1's kind of endpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from time import sleep
from typing import TYPE_CHECKING, Literal
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from agentmerge.errors import EvalError, Where, shown

if TYPE_CHECKING:
    from agentmerge.eval.request import JSON

Dialect = Literal["zerosearch", "search-r1"]
"""{"query": ..., "top_k": n} and [{"text": ...}]; or {"queries": [...], "topk": n, "return_scores": true} and
{"result": [[{"document": {"contents": ...}}]]}."""
TRIES = 3


@dataclass(frozen=True)
class SearchServer:
    """Asks a server by POST."""

    url: str
    dialect: Dialect
    timeout: float
    """Seconds."""
    pause: float = 1.0
    """Seconds before the second try; twice as long before the third."""

    def search(self, query: str, count: int) -> list[str]:
        """What the server finds.

        Raises:
            EvalError: it does not answer, or says something else, three times.
        """
        for tried in range(TRIES):
            try:
                return self._texts(self._ask(query, count))[:count]
            except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
                failure = error
                if isinstance(error, HTTPError):
                    error.close()
            if tried + 1 < TRIES:
                sleep(self.pause * 2**tried)
        reason = failure.reason if isinstance(failure, URLError) else failure
        said = f"{self.url}: no search results: {type(failure).__name__}: {shown(str(reason))}"
        todo = f"It is asked as {self.dialect} does; start it, or name another with --set search.endpoint=URL."
        raise EvalError(said, todo=todo, where=Where(path=self.url)) from failure

    def _ask(self, query: str, count: int) -> JSON:
        asked: JSON = {"query": query, "top_k": count}
        if self.dialect == "search-r1":
            asked = {"queries": [query], "topk": count, "return_scores": True}
        head = {"Content-Type": "application/json"}
        request = Request(self.url, json.dumps(asked).encode(), head, method="POST")
        with urlopen(request, timeout=self.timeout) as answer:
            return json.load(answer)

    def _texts(self, answer: JSON) -> list[str]:
        if self.dialect == "zerosearch":
            return [str(found["text"]) for found in answer]
        return [str(found.get("document", found)["contents"]) for found in answer["result"][0]]
