"""What the hub refuses, in our words: where, what was found and what to do. What is told to it is left to others."""

from __future__ import annotations

import errno
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agentmerge.errors import MergeError, Problem, SourceError, SourceNotFoundError, Where

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.sources.hub import HubId

LOGIN = "log in with `hf auth login`, or set HF_TOKEN"
ACCEPTS = "Get one at {url}/settings/tokens and {login}; where HF_TOKEN is set, it wins over the login."
LONGEST = 300
"""Characters of another's message."""


@contextmanager
def reading(model: HubId, file: str = "") -> Iterator[None]:
    """Whatever the hub, the network or the cache refuses inside is a SourceError about this model.

    Args:
        model: on the hub.
        file: of it, which is fetched: the hub has answered before, and some of it may be here.
    """
    try:
        yield
    except MergeError:
        raise
    except Exception as error:  # of huggingface_hub and the HTTP library that its version uses, for many reasons
        raise _refused(error, model, file) from error


def status_of(error: BaseException) -> int:
    """The HTTP status that an error, or what caused it, is about; 0 where it is about none."""
    found = getattr(getattr(error, "response", None), "status_code", 0)
    if isinstance(found, int) and found:
        return found
    return status_of(error.__cause__) if error.__cause__ is not None else 0


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:LONGEST].rstrip(".")


def endpoint() -> str:
    """Where the hub is: HF_ENDPOINT, or its own place."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def bad_token() -> tuple[str, str]:
    """What is found, and what to do, where the hub does not take a token."""
    return "the hub does not accept the token (401)", ACCEPTS.format(url=endpoint(), login=LOGIN)


def _refused(error: Exception, model: HubId, file: str) -> SourceError:
    """The error of ours that says the same."""
    from huggingface_hub import errors as hf

    cause: Any = error.__cause__ if isinstance(error, hf.LocalEntryNotFoundError) and error.__cause__ else error
    status, url, where = status_of(cause), f"{endpoint()}/{model.name}", Where(source=str(model), path=file)
    what = f"{model}: {file}" if file else str(model)
    if isinstance(cause, hf.GatedRepoError):
        return SourceError(_gated(status, model, url, where))
    if isinstance(cause, hf.RevisionNotFoundError):
        found = f"{model}: no such folder, and {model.name} has no revision {model.revision or 'main'} on the hub"
        return SourceNotFoundError(found, todo=f"Its branches and tags: {url}/tree/main", where=where)
    if isinstance(cause, hf.RepositoryNotFoundError | hf.HFValidationError):
        found = f"{model}: no such folder, and no model on the hub that you may see ({status or 'no such name'})"
        todo = f"Check the path, or the id at {url}. Where the model is private, {LOGIN}."
        return SourceNotFoundError(found, todo=todo, where=where)
    if status == 401:
        found, todo = bad_token()
        return SourceError(f"{model}: {found}", todo=todo, where=where)
    if status == 403:
        found, todo = f"{what}: the hub forbids it (403): {said(cause)}", "The token must be one that may read it."
        return SourceError(found, todo=todo, where=where)
    if status:
        found, todo = f"{what}: the hub answered {status}: {said(cause)}", "Run it again later: it goes on."
        return SourceError(found, todo=todo, where=where)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        todo = "Free some space, or name another place with HF_HOME."
        return SourceError(f"{what}: no space is left for it in the hub's cache", todo=todo, where=where)
    if isinstance(cause, PermissionError):
        return SourceError(f"{what}: the hub's cache can't be written: {cause}", todo="Set HF_HOME.", where=where)
    if file:
        found = f"{what}: fetching it broke off ({first_line(cause)})"
        return SourceError(found, todo="Run the same command again: what is here is not fetched again.", where=where)
    return SourceNotFoundError(_unreachable(cause, model, where))


def _gated(status: int, model: HubId, url: str, where: Where) -> Problem:
    if status == 401:
        todo = f"Ask for access at {url}, then {LOGIN}."
        return Problem(f"{model}: gated, and the hub does not know who asks (401)", todo=todo, where=where)
    todo = (
        f"Ask for access at {url} and wait until it is granted. `hf auth whoami` says whose token is used; one with "
        "fine-grained permissions must also allow to read public gated repositories."
    )
    return Problem(f"{model}: gated, and this account is not let in ({status})", todo=todo, where=where)


def _unreachable(cause: Exception, model: HubId, where: Where) -> Problem:
    from huggingface_hub import constants

    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"the hub can't be reached ({first_line(cause)})"
    todo = f"Check the path. A model on the hub is fetched where there is a network: {model.command}"
    return Problem(f"{model}: no such folder, and {why}", todo=todo, where=where)


def said(error: BaseException) -> str:
    """The hub's own message, or else the error's."""
    server: str | None = getattr(error, "server_message", None)
    if not server and error.__cause__ is not None:
        return said(error.__cause__)
    return (server or first_line(error))[:LONGEST]


@contextmanager
def no_bars() -> Iterator[None]:
    """huggingface_hub draws none of its own bars."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    before = are_progress_bars_disabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # HF_HUB_DISABLE_PROGRESS_BARS may say otherwise, and wins
        disable_progress_bars()
    try:
        yield
    finally:
        if not before:
            enable_progress_bars()
