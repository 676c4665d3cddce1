"""A search server is asked in its own words, and a run ends where it does not answer."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.search.retriever import NOTHING, as_text
from agentmerge.eval.search.server import SearchServer

if TYPE_CHECKING:
    from collections.abc import Iterator


class Stub(HTTPServer):
    """Answers what it is told to, one after another, and the last for ever."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[Any] = []
        self.answers: list[tuple[int, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/retrieve"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Stub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(json.loads(body))
        answers = self.server.answers
        status, answer = answers.pop(0) if len(answers) > 1 else answers[0]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_zerosearchs_words(stub: Stub) -> None:
    stub.answers = [(200, [{"text": "a"}, {"text": "b"}, {"text": "c"}])]
    assert SearchServer(stub.url, "zerosearch", 5).search("who", 2) == ["a", "b"]
    assert stub.asked == [{"query": "who", "top_k": 2}]


def test_search_r1s_words(stub: Stub) -> None:
    stub.answers = [(200, {"result": [[{"document": {"contents": "a"}, "score": 1.5}, {"contents": "b"}]]})]
    assert SearchServer(stub.url, "search-r1", 5).search("who", 5) == ["a", "b"]
    assert stub.asked == [{"queries": ["who"], "topk": 5, "return_scores": True}]


def test_a_server_that_stumbles_is_asked_again(stub: Stub) -> None:
    stub.answers = [(503, {}), (200, {"error": "busy"}), (200, [{"text": "a"}])]
    assert SearchServer(stub.url, "zerosearch", 5, pause=0).search("who", 2) == ["a"]
    assert len(stub.asked) == 3


def test_a_server_that_fails_ends_the_run_instead_of_finding_nothing(stub: Stub) -> None:
    stub.answers = [(500, {})]
    with pytest.raises(EvalError, match=r"no search results: HTTPError.*asked as zerosearch does"):
        SearchServer(stub.url, "zerosearch", 5, pause=0).search("who", 2)
    assert len(stub.asked) == 3
    with pytest.raises(EvalError, match="no search results"):
        SearchServer("http://127.0.0.1:9/", "zerosearch", 5, pause=0).search("who", 2)


def test_no_passages_are_told_in_zerosearchs_words() -> None:
    assert as_text([]) == NOTHING
    assert as_text(["a\n b", "c"]) == "Doc 1: a b\nDoc 2: c"
