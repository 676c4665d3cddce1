"""What an id on the Hugging Face hub looks like, and what lies here of the model that it names."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentmerge.files.paths import expanded

if TYPE_CHECKING:
    from agentmerge.errors import Note

_HUB_ID = re.compile(r"(?:hf://)?(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubId:
    """A model on the hub."""

    name: str
    """OWNER/MODEL."""
    revision: str = ""
    """"" is the newest."""

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}" if self.revision else self.name

    @property
    def folder(self) -> str:
        """Where it is looked for and downloaded to: OWNER/MODEL, or OWNER/MODEL-REVISION."""
        return f"{self.name}-{self.revision.replace('/', '-')}" if self.revision else self.name

    @property
    def command(self) -> str:
        """What downloads it to that folder."""
        revision = f" --revision {self.revision}" if self.revision else ""
        return f"hf download {self.name}{revision} --local-dir {self.folder}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a model on the hub, as it lies here."""

    folder: Path
    commit: str
    """Its id on the hub."""
    notes: tuple[Note, ...] = ()
    missing: int = 0
    """Bytes that a merge downloads first."""
    headers_only: bool = False
    """Its weight files have their headers and sizes, but no data."""


def cached_snapshot(folder: Path) -> Snapshot | None:
    """What a folder of the hub's cache (models--OWNER--MODEL/snapshots/COMMIT) holds; None for any other folder."""
    model = folder.parent.parent.name
    return Snapshot(folder, folder.name) if folder.parent.name == "snapshots" and model.startswith("models--") else None


def local_path(text: str) -> Path:
    """Where a source lies: the path that it is, or, where nothing is there, the folder that its hub id stands for."""
    path = expanded(text)
    if text and path.exists():
        return path
    found = hub_id(text)
    return Path(found.folder) if found and Path(found.folder).exists() else path


def hub_model(text: str) -> str | None:
    """The model on the hub that a source names; None where it is a path, be it one that looks like an id."""
    found = None if Path(text).exists() else hub_id(text)
    return found.name if found else None


def hub_id(text: str) -> HubId | None:
    """[hf://]OWNER/MODEL[@REVISION]; None where it is none. A path may look like one: see first whether it exists."""
    found = _HUB_ID.fullmatch(text)
    return HubId(found["name"], found["revision"] or "") if found else None
