"""A commit of a model on the hub: which files it has, and where they lie in the cache."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from agentmerge.errors import Note, SourceError, Where
from agentmerge.hub.answers import reading
from agentmerge.sources.hub import HubId, Snapshot, hub_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_COMMIT = re.compile(r"[0-9a-f]{40,64}")
"""It becomes the name of a folder, whoever answers as the hub."""
ENOUGH = 10.0
"""Seconds to wait for an answer."""


@dataclass(frozen=True)
class Listing:
    """The files of one commit."""

    model: HubId
    commit: str
    sizes: Mapping[str, int] = field(repr=False)
    """Bytes of every file by its path; 0 where the hub does not say."""

    @property
    def folder(self) -> Path:
        """The snapshot in the cache, which may lack some or all of them."""
        return cache_of(self.model) / "snapshots" / self.commit

    def here(self, name: str) -> bool:
        """Whether a file lies in the cache, whole.

        Raises:
            SourceError: what lies there has another size.
        """
        path = self.folder / name
        if not path.is_file():
            return False
        size = path.stat().st_size
        if self.sizes[name] and size != self.sizes[name]:
            raise SourceError(
                f"{self.model}: {name} has {size} bytes in the hub's cache",
                expected=f"{self.sizes[name]}",
                todo=f"It is damaged: remove {path.resolve()}, and run this again.",
                where=Where(source=str(self.model), path=str(path)),
            )
        return True


def wanted(text: str) -> HubId | None:
    """The model on the hub that a source stands for; None where it is a path, or was fetched to its own folder."""
    found = hub_id(text)
    return None if found is None or Path(text).exists() or Path(found.folder).exists() else found


def listing(model: HubId, commit: str = "") -> Listing:
    """What the hub has of a model now, or has in a commit of it.

    Raises:
        SourceError: it can't be reached, or shows it to nobody, or not to this account.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    revision = commit or model.revision or None
    with reading(model):
        if constants.HF_HUB_OFFLINE:
            raise OfflineModeIsEnabled
        info: Any = HfApi().model_info(model.name, revision=revision, files_metadata=True, timeout=ENOUGH)
        if not _COMMIT.fullmatch(info.sha or ""):
            raise ValueError(f"what answers names the commit {info.sha!r:.80}")
        files = {one.rfilename: one.size or 0 for one in info.siblings or ()}
    return Listing(model, info.sha, {name: size for name, size in files.items() if _inside(name)})


def _inside(name: str) -> bool:
    """Whether a path stays in the folder that it is put into, whoever answers as the hub."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name and "\0" not in name


def cache_of(model: HubId) -> Path:
    """The model's folder in the hub's cache."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{model.name.replace('/', '--')}"


def known_commit(model: HubId) -> str:
    """The commit that the cache has for a model's revision; "" where it knows none."""
    root, revision = cache_of(model), model.revision or "main"
    if _COMMIT.fullmatch(revision) and (root / "snapshots" / revision).is_dir():
        return revision
    try:
        known = (root / "refs" / revision).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError):
        return ""
    return known if _COMMIT.fullmatch(known) else ""


def cached(model: HubId, commit: str = "") -> Snapshot | None:
    """What the cache has of a model without asking anybody; None where it has nothing."""
    commit = commit or known_commit(model)
    folder = cache_of(model) / "snapshots" / commit
    return Snapshot(folder, commit) if commit and folder.is_dir() and any(folder.iterdir()) else None


def snapshot_of(text: str, pins: Mapping[str, str], bring: Callable[[Listing, str], Snapshot]) -> Snapshot | None:
    """What a source is on the hub; None where it is no id.

    Where the hub can't be asked, what the cache has is used, with a warning.

    Args:
        text: what the user wrote.
        pins: commits by such texts, that a killed run began with: they are used wherever a branch is now.
        bring: what makes a snapshot of a listing; told the pin, too, which is "" where there is none.

    Raises:
        SourceError: it is not there, or not allowed.
    """
    model = wanted(text)
    if model is None:
        return None
    pin = pins.get(text, "")
    try:
        now = listing(model, pin)
    except SourceError as error:
        return _fallen_back(model, pin, error)
    return bring(now, pin)


def _fallen_back(model: HubId, pin: str, error: SourceError) -> Snapshot:
    """What the cache has, where the hub gave an error; the error where it has nothing."""
    found = cached(model, pin)
    if found is None:
        raise error
    from huggingface_hub import constants

    text = f"{error.problems[0].found}; commit {found.commit}, which is in the hub's cache, is read"
    return replace(found, notes=(Note(text, severity="note" if constants.HF_HUB_OFFLINE else "warning"),))
