"""A small OpenAI-compatible server in this process: what it answers is a function of what it is asked."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from agentmerge.eval.request import Message, Request, Response, Sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Answer = Response | tuple[int, str] | tuple[int, str, dict[str, str]] | bytes | dict[str, Any]
"""An answer; an HTTP status, its text and headers; or all that is sent, as bytes or JSON."""


@dataclass
class Served:
    """A server that runs."""

    answer: Callable[[Request], Answer]
    models: tuple[str, ...] = ("served",)
    asked: list[Request] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    most: int = 0
    """Requests that were under way at once."""
    url: str = ""
    _open: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, body: dict[str, Any], chat: bool) -> Answer:
        """Answer a request, and note it."""
        request = request_of(body, chat)
        with self._lock:
            self.asked.append(request)
            self.bodies.append(body)
            self._open += 1
            self.most = max(self.most, self._open)
        try:
            return self.answer(request)
        finally:
            with self._lock:
                self._open -= 1


def request_of(body: dict[str, Any], chat: bool) -> Request:
    """The request that a body holds."""
    sampling = Sampling(
        max_tokens=body["max_tokens"],
        temperature=body["temperature"],
        top_p=body["top_p"],
        top_k=body.get("top_k"),
        stop=tuple(body.get("stop", ())),
    )
    messages = tuple(Message(one["role"], one["content"]) for one in body["messages"]) if chat else None
    return Request(messages, None if chat else body["prompt"], sampling)


@contextmanager
def serving(answer: Callable[[Request], Answer], **facts: Any) -> Iterator[Served]:
    """Serve until left."""
    served = Served(answer, **facts)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, {"data": [{"id": name} for name in served.models]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            chat = self.path.endswith("/chat/completions")
            found = served.take(body, chat)
            if isinstance(found, Response):
                self._send(200, completion(found, chat))
            elif isinstance(found, bytes | dict):
                self._send(200, found)
            else:
                status, text, *headers = found
                self._send(status, {"error": {"message": text}}, *headers)

        def _send(self, status: int, content: bytes | dict[str, Any], headers: dict[str, str] | None = None) -> None:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                for name, value in ({"Retry-After": "0"} if status == 429 and not headers else headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)
            except OSError:  # whoever asked is gone
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: Any) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def completion(response: Response, chat: bool) -> dict[str, Any]:
    """As OpenAI's protocol says it."""
    said = {"message": {"role": "assistant", "content": response.text}} if chat else {"text": response.text}
    usage = {"prompt_tokens": response.prompt_tokens, "completion_tokens": response.tokens}
    return {"choices": [{**said, "finish_reason": "stop" if response.finished else "length"}], "usage": usage}


class Batching:
    """Requests that come within a moment are answered together by one generator, in a thread of its own."""

    def __init__(self, generator: Any, wait: float = 0.05, most: int = 8) -> None:
        self._generator, self._wait, self._most = generator, wait, most
        self._waiting: list[tuple[Request, threading.Event, dict[str, Response]]] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._work, daemon=True).start()

    def __call__(self, request: Request) -> Response:
        """Answer it, in its turn."""
        done, found = threading.Event(), dict[str, Response]()
        with self._changed:
            self._waiting.append((request, done, found))
            self._changed.notify()
        done.wait()
        return found[request.key]

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                self._changed.wait(self._wait)
                taken, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            found: dict[str, Response] = {}
            unique = {request.key: request for request, _, _ in taken}
            self._generator.generate(list(unique.values()), partial(_keep, found))
            for _request, done, own in taken:
                own.update(found)
                done.set()


def _keep(found: dict[str, Response], request: Request, response: Response) -> None:
    found[request.key] = response
