"""Any server that speaks OpenAI's protocol: vLLM, SGLang, llama.cpp, `transformers serve`, and what is hosted."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

from agentmerge.errors import EvalError, Where, shortened, shown
from agentmerge.eval.generators.generator import way_of
from agentmerge.eval.generators.http import Endpoint, TooLong, unheard
from agentmerge.eval.request import CALLS, Response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from agentmerge.eval.request import JSON, Request

PATHS = {True: "chat/completions", False: "completions"}
"""Under /v1, by whether a request is a chat."""
ASIDE = (*CALLS, "reasoning_content", "reasoning")
"""Fields of a message in which a server may send what was generated, beside or in place of its content."""


@dataclass(frozen=True)
class OpenAI:
    """Chats go to /v1/chat/completions, raw text to /v1/completions."""

    server: str
    """Its address, with or without /v1."""
    model: str
    """The name that the server knows the model by."""
    concurrency: int = 32
    """Requests under way at once."""
    timeout: float = 600.0
    retries: int = 6
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Sent with every request besides, for what only some servers know: {"repetition_penalty": 1.0}."""
    empty_if_too_long: bool = False
    """Whether a prompt that does not fit counts as answered by nothing, or ends the run."""
    limit_name: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What a chat calls its most new tokens."""
    waiting: Callable[[str, float], None] = field(default=unheard, compare=False)
    """Told why and for how many seconds a request waits for its next try, from the calling thread."""

    @property
    def identity(self) -> dict[str, JSON]:
        """What is sent besides prompts and sampling."""
        return {
            "kind": "openai",
            "model": self.model,
            "fields": dict(self.fields),
            "server": self.server,
            "too_long": way_of(self.empty_if_too_long),
        }

    def generate(self, requests: Sequence[Request], done: Callable[[Request, Response], None]) -> None:
        """Keep `concurrency` requests under way; a failure ends the run, once those under way are stored."""
        calls = _Calls(self, requests)
        failure: Exception | None = None
        with calls:
            for request, outcome in calls.outcomes():
                if isinstance(outcome, Response):
                    done(request, outcome)
                elif isinstance(outcome, _Wait):
                    self.waiting(outcome.text, outcome.seconds)
                else:
                    failure = failure or outcome
        if failure is not None:
            raise failure

    def count_tokens(self, text: str) -> int | None:
        """The protocol has no way to ask."""
        return None

    def endpoint(
        self,
        path: str,
        sleep: Callable[[float], None] = time.sleep,
        waiting: Callable[[str, float], None] = unheard,
    ) -> Endpoint:
        """What lies at a path under /v1."""
        address = self.server.rstrip("/")
        address = address if address.endswith("/v1") else f"{address}/v1"
        key = os.environ.get("OPENAI_API_KEY", "")
        return Endpoint(f"{address}/{path}", key, self.timeout, self.retries, sleep, waiting)

    def ask(
        self,
        request: Request,
        sleep: Callable[[float], None] = time.sleep,
        waiting: Callable[[str, float], None] = unheard,
    ) -> Response:
        """Answer one request.

        Raises:
            EvalError: it can't be had.
        """
        endpoint = self.endpoint(PATHS[request.messages is not None], sleep, waiting)
        try:
            return response_of(endpoint.post(self._body(request)), endpoint.url)
        except TooLong as error:
            if self.empty_if_too_long:
                return Response.unasked()
            raise EvalError(
                f"{endpoint.url}: {error}",
                todo="Serve the model with more positions, lower max_tokens of that suite, or let such prompts count "
                "as answered by nothing (--too-long empty).",
                where=Where(source=endpoint.url),
            ) from None

    def _body(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        body: dict[str, Any] = {"model": self.model, "temperature": sampling.temperature, "top_p": sampling.top_p}
        if request.messages is None:
            body |= {"prompt": request.prompt, "max_tokens": sampling.max_tokens}
        else:
            chat = [{"role": message.role, "content": message.content} for message in request.messages]
            body |= {"messages": chat, self.limit_name: sampling.max_tokens}
        if sampling.top_k is not None:
            body["top_k"] = sampling.top_k
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if request.seed is not None:
            body["seed"] = request.seed
        return body | dict(self.fields)


@dataclass(frozen=True, slots=True)
class _Wait:
    """A request that waits for its next try."""

    text: str
    seconds: float


class _Calls:
    """Requests under way in threads that end with the process: whoever leaves need not wait for a slow server."""

    def __init__(self, server: OpenAI, requests: Sequence[Request]) -> None:
        self.stop = threading.Event()
        """Set when nothing more is to be asked."""
        self._server, self._waiting, self._lock = server, iter(requests), threading.Lock()
        self._found: SimpleQueue[tuple[Request, Response | Exception | _Wait] | None] = SimpleQueue()
        count = min(server.concurrency, len(requests))
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self.stop.set()

    def outcomes(self) -> Iterator[tuple[Request, Response | Exception | _Wait]]:
        """What became of each request that was asked, and its waits, as it comes, until every thread has ended."""
        live = len(self._threads)
        while live:
            found = self._found.get()
            if found is None:
                live -= 1
            else:
                yield found

    def _work(self) -> None:
        while not self.stop.is_set():
            with self._lock:
                request = next(self._waiting, None)
            if request is None:
                break
            try:
                self._found.put((request, self._server.ask(request, self._sleep, partial(self._waits, request))))
            except Exception as error:  # told by the thread that waits
                self._found.put((request, error))  # before others, who are stopped by it, tell of that
                self.stop.set()
        self._found.put(None)

    def _waits(self, request: Request, text: str, seconds: float) -> None:
        self._found.put((request, _Wait(text, seconds)))

    def _sleep(self, seconds: float) -> None:
        if self.stop.wait(seconds):
            raise EvalError("stopped")


def response_of(answer: Mapping[str, Any], place: str) -> Response:
    """The first choice of a completion.

    Raises:
        EvalError: it is no completion.
    """
    try:
        choice = answer["choices"][0]
        text, aside = _said(choice["message"]) if "message" in choice else (choice["text"], "")
        if not isinstance(text, str | None):
            raise TypeError
        usage = answer.get("usage") or {}
        ended, stop = choice.get("finish_reason"), choice.get("stop_reason")
    except (KeyError, IndexError, TypeError, AttributeError):
        found = f"{place}: answers {shown(dict(answer))}"
        raise EvalError(
            found, expected="a completion with choices, whose content is text or null", where=Where(source=place)
        ) from None
    return Response(
        text=text or "",
        finished=ended != "length",
        prompt_tokens=usage.get("prompt_tokens"),
        tokens=usage.get("completion_tokens"),
        stop=stop if isinstance(stop, str) else None,
        aside="" if text and text.strip() else aside,
    )


def _said(message: Mapping[str, Any]) -> tuple[Any, str]:
    """The content of a message, and the first field of ASIDE that holds something."""
    aside = next((name for name in ASIDE if message.get(name)), "")
    return message.get("content") if aside else message["content"], aside


def served_model(server: str, model: str) -> str:
    """What a server calls a model: its name, or the only one that is served.

    Raises:
        EvalError: it can't be reached, or serves several others.
    """
    endpoint = OpenAI(server, "").endpoint("models")
    try:
        names = [str(one["id"]) for one in endpoint.get()["data"]]
    except (KeyError, TypeError):
        raise EvalError(f"{endpoint.url}: does not list its models", todo="Give --served-name.") from None
    if model in names:
        return model
    if len(names) != 1:
        found = f"{endpoint.url}: serves {shortened(names) or 'nothing'}, not {model}"
        raise EvalError(found, todo="Say which by --served-name.", where=Where(source=server))
    return names[0]
