"""A finished merge put on the hub: checked, then its repository, then one upload."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from agentmerge.errors import MergeError, Note, OutputError, RecipeError, Where
from agentmerge.frozen import Record
from agentmerge.hub.answers import LOGIN, bad_token, endpoint, no_bars, said, status_of
from agentmerge.hub.ready import CARD, ready
from agentmerge.sidefiles.card import hub_takes
from agentmerge.sources.hub import hub_id

if TYPE_CHECKING:
    from agentmerge.hub.ready import Ready

_SHOW = "Change that in its settings on the hub."


class PushRecord(Record):
    """What was put where."""

    format: str = "agentmerge.push/1"
    url: str
    repository: str
    commit: str
    private: bool
    """Whether the repository is."""
    files: int
    bytes: int
    base_models: list[str]
    """What the card says that it was merged from."""
    license: str
    warnings: list[str]


def push(folder: Path, repository: str, *, public: bool = False, bars: bool = False) -> PushRecord:
    """Upload a merge; nothing is made or uploaded unless its folder passes the check and somebody is logged in.

    Files that were uploaded by a call that failed are not uploaded again.

    Args:
        folder: that `merge` wrote.
        repository: OWNER/NAME; made when it is not there.
        public: a repository that is made is shown to everybody; one that is there stays as it is.
        bars: huggingface_hub shows its progress on stderr.

    Raises:
        RecipeError: `repository` is no such name.
        SurveyError, OutputError: the folder is no finished merge, its card lacks something, or the hub refuses it.
    """
    check_name(repository)
    merge = ready(folder)
    who = logged_in(repository)
    private = _made(repository, who, public=public)
    with nullcontext() if bars else no_bars():
        commit = _uploaded(merge, repository, who)
    notes = _still_private(repository) if private and public else [] if private else _local_paths(merge)
    return PushRecord(
        url=f"{endpoint()}/{repository}",
        repository=repository,
        commit=commit,
        private=private,
        files=len(merge.files),
        bytes=merge.bytes,
        base_models=list(merge.base_models),
        license=merge.licence,
        warnings=list(map(str, notes)),
    )


def check_name(repository: str) -> None:
    """Raise RecipeError unless it is OWNER/NAME as the hub takes it."""
    found = hub_id(repository)
    if found is None or found.name != repository or not hub_takes(repository):
        raise RecipeError(f"{repository}: no name on the hub, which are OWNER/NAME", todo="A push goes to main.")


def logged_in(repository: str) -> str:
    """Whose token is used.

    Raises:
        OutputError: there is none, or the hub does not take it, or can't be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import LocalTokenNotFoundError

    try:
        return str(HfApi().whoami()["name"])
    except LocalTokenNotFoundError:
        raise _error(
            repository, "not logged in to the hub", f"To upload, {LOGIN}, with a token that may write."
        ) from None
    except Exception as error:  # of huggingface_hub and its HTTP library, for many reasons
        if status_of(error) == 401:
            raise _error(repository, *bad_token()) from error
        _refuse(error, repository, "")


def _made(repository: str, who: str, *, public: bool) -> bool:
    """Make the repository unless it is there; whether it is private."""
    from huggingface_hub import HfApi

    try:
        HfApi().create_repo(repository, private=not public, exist_ok=True)
        return bool(HfApi().model_info(repository).private)
    except Exception as error:
        _refuse(error, repository, who)


def _uploaded(merge: Ready, repository: str, who: str) -> str:
    """Upload the files in one go; the commit."""
    from huggingface_hub import HfApi

    message = f"Merge of {', '.join(merge.record.survey.agents)} with {merge.record.recipe['method']['name']}"
    try:
        info: Any = HfApi().upload_folder(
            repo_id=repository, folder_path=merge.folder, commit_message=message, ignore_patterns=[".*", "**/.*"]
        )
    except Exception as error:
        _refuse(error, repository, who)
    return str(info.oid)


def _still_private(repository: str) -> list[Note]:
    """A warning where somebody asked for a public repository, and it was there before."""
    return [Note(f"{repository} was there and is private: --public is of a repository that a push makes.", _SHOW)]


def _local_paths(merge: Ready) -> list[Note]:
    """A warning where the record and the card tell paths of this machine to everybody."""
    texts = [str(source["source"]) for source in merge.record.sources.values()]
    paths = [text for text in texts if Path(text).expanduser().is_absolute()]
    found = f"{CARD} and merge_record.json tell paths of this machine: {', '.join(paths[:3])}"
    return [Note(found, "They are public now.")] if paths else []


def _refuse(error: Exception, repository: str, who: str) -> NoReturn:
    """Raise our error for one of the hub's."""
    if isinstance(error, MergeError):
        raise error
    status, why = status_of(error), said(error)
    if status in (401, 403):
        owner = repository.partition("/")[0]
        found = f"the hub lets {who or 'this token'} not write there ({status}): {why}"
        todo = f"Make a token with write access to {owner} at {endpoint()}/settings/tokens and {LOGIN}"
        if who != owner:
            todo += f", or push to a name of your own: {who or 'YOU'}/{repository.partition('/')[2]}"
        raise _error(repository, found, todo) from error
    again = "Run the same command again: what was uploaded is not uploaded twice."
    if status:
        raise _error(repository, f"the hub answered {status}: {why}", again) from error
    raise _error(repository, f"the upload failed: {why}", again) from error


def _error(repository: str, found: str, todo: str) -> OutputError:
    return OutputError(f"{repository}: {found}", todo=todo, where=Where(source=repository))
