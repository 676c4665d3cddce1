"""The stored answers of one suite: responses.jsonl, a line per answer, keyed by its request."""

from __future__ import annotations

from dataclasses import asdict
from time import monotonic, time
from typing import TYPE_CHECKING, Self

from agentmerge.eval.lines import Appended
from agentmerge.eval.request import Response
from agentmerge.files.os_errors import output_errors

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.eval.request import JSON, Request

RESPONSES = "responses.jsonl"


class Answers:
    """Every answer that was ever had; each is on the disk before `add` returns.

    A prompt that the model could not hold has none. That it was so stands in the file, too, for scoring without a
    model; who has a model asks it again.
    """

    def __init__(self, folder: Path, *, asking: bool = True) -> None:
        """Open or make `folder`'s file; one process at a time may.

        Args:
            folder: of the suite.
            asking: whether there is a model to ask: what did not fit is then not known.

        Raises:
            OutputError: another process writes there, or nothing can be written there.
        """
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._file = Appended(folder / RESPONSES)
        self._began, self._session = monotonic(), f"{time():.3f}"
        self._seconds: dict[str, float] = {}
        self.known: dict[str, Response] = {}
        for line in self._file.lines:
            self._note(line)
        self._unfit = {key for key, response in self.known.items() if not response.fits}
        if asking:
            self.known = {key: response for key, response in self.known.items() if response.fits}
        self._file.lines.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def seconds(self) -> float:
        """Of all sessions, from each one's begin to its last answer."""
        return sum(self._seconds.values())

    def add(self, request: Request, response: Response) -> None:
        """Store an answer."""
        line = {
            "key": request.key,
            "response": asdict(response),
            "request": request.dump(),
            "session": self._session,
            "elapsed": round(monotonic() - self._began, 3),
        }
        if response.fits or request.key not in self._unfit:
            self._file.append(line)
        self._note(line)

    def _note(self, line: dict[str, JSON]) -> None:
        try:
            self.known[line["key"]] = Response(**line["response"])
            self._seconds[line["session"]] = line["elapsed"]
        except (KeyError, TypeError):  # not a line of ours: that request is asked again
            return


def stored(folder: Path) -> dict[str, Response]:
    """The answers of a suite's folder, to be replayed.

    Raises:
        EvalError: there are none.
    """
    from agentmerge.eval.lines import read_lines

    return {line["key"]: Response(**line["response"]) for line in read_lines(folder / RESPONSES)}
