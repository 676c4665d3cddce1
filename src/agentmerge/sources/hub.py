"""What an id on the Hugging Face hub looks like."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_HUB_ID = re.compile(r"(?:hf://)?(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HubId:
    """A model on the hub."""

    name: str
    """OWNER/MODEL."""
    revision: str = ""
    """"" is the newest."""

    @property
    def folder(self) -> str:
        """Where it is looked for and downloaded to: OWNER/MODEL, or OWNER/MODEL-REVISION."""
        return f"{self.name}-{self.revision.replace('/', '-')}" if self.revision else self.name

    @property
    def command(self) -> str:
        """What downloads it to that folder."""
        revision = f" --revision {self.revision}" if self.revision else ""
        return f"hf download {self.name}{revision} --local-dir {self.folder}"


def local_path(text: str) -> Path:
    """Where a source lies: the path that it is, or, where nothing is there, the folder that its hub id stands for."""
    path = Path(text)
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
