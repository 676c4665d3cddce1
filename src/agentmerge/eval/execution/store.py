"""Verdicts on disk, so that scoring that was killed goes on where it was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, get_args

from agentmerge.eval.execution.trial import Verdict
from agentmerge.eval.lines import Appended

if TYPE_CHECKING:
    from pathlib import Path

EXECUTIONS = "executions.jsonl"


class Verdicts:
    """Every verdict that there ever was, by `Trial.key`; each is on the disk before `add` returns."""

    def __init__(self, folder: Path) -> None:
        """Open or make `folder`'s file; one process at a time may.

        Raises:
            OutputError: another process writes there.
        """
        self._file = Appended(folder / EXECUTIONS)
        lines = self._file.lines
        self.known: dict[str, Verdict] = {
            line["key"]: line["verdict"] for line in lines if line.get("verdict") in get_args(Verdict)
        }
        self.facts: dict[str, Any] = next((line["facts"] for line in reversed(lines) if "facts" in line), {})
        """What kept the last programs in."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, key: str, verdict: Verdict) -> None:
        """Store one."""
        self._file.append({"key": key, "verdict": verdict})
        self.known[key] = verdict

    def tell(self, facts: dict[str, Any]) -> None:
        """Store what kept programs in, where it is news."""
        if facts and facts != self.facts:
            self._file.append({"facts": facts})
            self.facts = facts
