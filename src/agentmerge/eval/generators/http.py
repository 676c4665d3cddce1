"""One POST of JSON with patience: what may pass is tried again, what will not is told at once."""

from __future__ import annotations

import http.client
import json
import math
import random
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from agentmerge.errors import EvalError, Where

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PASSING = {408, 409, 425, 429, 500, 502, 503, 504}
"""Status codes of what may pass."""
TOO_LONG = re.compile(
    r"context.?(length|window)|maximum.{0,40}(length|tokens)|too (long|many tokens)|max_model_len", re.I
)
"""How servers put it that a prompt does not fit."""
LONGEST_WAIT = 60.0
"""Seconds between two tries where the server asks for none."""
MOST_WAIT = 600.0
"""Seconds that a server may ask to wait; where it asks for more, the run ends and says so."""
WORTH_TELLING = 2.0
"""Seconds from which on a wait is told."""


def unheard(text: str, seconds: float) -> None:
    """Tell nobody of a wait."""


class TooLong(Exception):
    """The server says that the prompt is longer than its model takes."""


@dataclass(frozen=True)
class Endpoint:
    """A place that takes JSON by POST."""

    url: str
    key: str = ""
    """Sent as a bearer token; "" sends none."""
    timeout: float = 600.0
    """Seconds that one answer may take."""
    retries: int = 6
    """Further tries."""
    sleep: Callable[[float], None] = time.sleep
    waiting: Callable[[str, float], None] = unheard
    """Told why and for how many seconds it waits, before each longer wait."""

    def post(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON object that comes back.

        Raises:
            TooLong: the prompt does not fit.
            EvalError: the server refuses, asks to wait for longer than MOST_WAIT, can't be reached after all tries, or
                answers something else.
        """
        data = json.dumps(body).encode()
        for attempt in range(self.retries + 1):
            try:
                return self._once(data)
            except _Passing as error:
                if attempt == self.retries:
                    raise self._failed(f"{error}, {attempt + 1} times in a row") from None
                self._pause(attempt, error)
        raise AssertionError("a last try returns or raises")

    def _pause(self, attempt: int, error: _Passing) -> None:
        """Wait for the next try, and tell of it."""
        if error.after is not None and error.after > MOST_WAIT:
            raise self._failed(
                f"{error}; the server asks to wait {error.after:,.0f} s",
                expected=f"at most {MOST_WAIT:,.0f} s",
                todo="Run the same command again when they are over: what was answered is stored, and it goes on.",
            )
        seconds = _wait(attempt, error.after)
        if seconds >= WORTH_TELLING:
            asked = "the server asks to wait" if error.after is not None else "waiting"
            self.waiting(f"{error}; {asked} {seconds:,.0f} s, then try {attempt + 2} of {self.retries + 1}", seconds)
        self.sleep(seconds)

    def get(self) -> dict[str, Any]:
        """The JSON object that lies there, by one try.

        Raises:
            EvalError: it can't be had.
        """
        try:
            return self._once(None)
        except (_Passing, TooLong) as error:
            raise self._failed(str(error)) from None

    def _once(self, data: bytes | None) -> dict[str, Any]:
        if not self.url.startswith(("http://", "https://")):
            raise self._no_address("it names no http")
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            request = urllib.request.Request(self.url, data, headers)
            with urllib.request.urlopen(request, timeout=self.timeout) as response:
                content = response.read()
        except urllib.error.HTTPError as error:
            raise self._refused(error) from None
        except (ValueError, http.client.InvalidURL) as error:
            raise self._no_address(str(error)) from None
        except http.client.IncompleteRead as error:
            raise _Passing(f"broke off its answer after {len(error.partial):,} bytes") from None
        except (OSError, http.client.HTTPException) as error:  # no connection, reset, time out
            reason = getattr(error, "reason", None) or error
            raise _Passing(f"can't be reached: {reason or type(error).__name__}") from None
        return self._object(content)

    def _object(self, content: bytes) -> dict[str, Any]:
        """What was answered; text that is no JSON may be half of one, or a gateway's page, and may pass."""
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            raise _Passing(f"answers {content[:120]!r}, which is no JSON") from None
        if not isinstance(found, dict):
            todo = "Check the address, which ends before /v1, and that the server speaks OpenAI's protocol."
            raise self._failed(f"answers {content[:120]!r}", expected="a JSON object", todo=todo)
        return found

    def _refused(self, error: urllib.error.HTTPError) -> Exception:
        try:
            told = error.read(2000).decode(errors="replace").strip()
        except (OSError, http.client.HTTPException):  # the status says enough
            told = ""
        said = f"answers HTTP {error.code} ({error.reason}): {told[:300]}"
        if error.code in PASSING:
            return _Passing(said, _seconds(error.headers.get("Retry-After")))
        if error.code in {400, 413, 422} and TOO_LONG.search(told):
            return TooLong(said)
        todo = {
            401: "Set OPENAI_API_KEY to the server's key.",
            403: "Set OPENAI_API_KEY to the server's key.",
            404: "Check the address, which ends before /v1, and --served-name.",
        }.get(error.code, "")
        return self._failed(said, todo=todo)

    def _no_address(self, reason: str) -> EvalError:
        expected = "an address such as http://localhost:8000"
        return self._failed(f"can't be asked: {reason}", expected=expected, todo="Correct the server's address.")

    def _failed(self, found: str, *, expected: str = "", todo: str = "") -> EvalError:
        todo = todo or "See the server's own log. What was answered is stored: the same command goes on."
        return EvalError(f"{self.url}: {found}", expected=expected, todo=todo, where=Where(source=self.url))


class _Passing(Exception):
    """What a further try may not meet."""

    def __init__(self, said: str, after: float | None = None) -> None:
        self.after = after
        super().__init__(said)


def _wait(attempt: int, after: float | None) -> float:
    """Seconds before the next try: what the server asked for, else 1, 2, 4 ... with a random half."""
    if after is not None:
        return after
    return min(2.0**attempt, LONGEST_WAIT) * random.uniform(0.5, 1.0)


def _seconds(text: str | None) -> float | None:
    """Of Retry-After: a number, or the time of a date from now; None where it is neither."""
    try:
        seconds = float(text or "")
    except ValueError:
        seconds = _until(text or "")
    return None if math.isnan(seconds) else max(0.0, seconds)


def _until(date: str) -> float:
    """Seconds to an HTTP date; NaN where it is none."""
    try:
        then = parsedate_to_datetime(date)
    except ValueError:
        return math.nan
    return ((then if then.tzinfo else then.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
