"""What a check found, in a record's words."""

from __future__ import annotations

from typing import Literal

from agentmerge.errors import Note, Problem, Role
from agentmerge.frozen import Frozen, Record

Severity = Literal["error", "warning", "note"]
ORDER: tuple[Severity, ...] = ("error", "warning", "note")


class Finding(Frozen):
    """One thing worth knowing before a merge."""

    severity: Severity
    """An error stops the merge; a warning is told and merged; a note is only to know."""
    where: str
    """"base", "onto", "keep", "agent 'NAME'" or "recipe"."""
    found: str
    expected: str = ""
    todo: str = ""

    @classmethod
    def of(cls, told: Problem | Note) -> Finding:
        """A problem or a note in a record's words."""
        role = told.where.role
        where = "recipe" if role is None else str(Role(role.agent) if role.agent else role)
        found = told.found.rstrip(".;\n")
        if isinstance(told, Note):
            return cls(severity=told.severity, where=where, found=found, todo=told.todo)
        return cls(severity="error", where=where, found=found, expected=told.expected, todo=told.todo)


class CheckRecord(Record):
    """What a check found, errors first."""

    format: str = "agentmerge.check/1"
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Whether nothing that was looked at stops a merge."""
        return not self.count("error")

    def count(self, severity: Severity) -> int:
        """How many findings are of this severity."""
        return sum(finding.severity == severity for finding in self.findings)
