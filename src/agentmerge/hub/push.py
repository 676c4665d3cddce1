"""A finished merge put on the hub: checked, then its repository, then one upload."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import quote

from agentmerge.errors import MergeError, Note, OutputError, RecipeError, Where, role_of, shortened
from agentmerge.frozen import Record
from agentmerge.hub.aimed import MAIN, refuse_source
from agentmerge.hub.answers import LOGIN, bad_token, endpoint, no_bars, said, status_of
from agentmerge.hub.ready import CARD, ready
from agentmerge.sidefiles.card import hub_takes
from agentmerge.sources.hub import hub_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.hub.ready import Ready
    from agentmerge.sources.hub import HubId

REQUESTS = "refs/pr/"
"""How the hub calls pull requests."""
WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_NO_BRANCH = re.compile(r"^[-/.@]$|^[-/]|[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/$|\.$|(^|/)\.|\.lock(/|$)")
"""In a name that git's check-ref-format refuses."""
_SHOW = "Change that in its settings on the hub."


class PushRecord(Record):
    """What was put where."""

    format: str = "agentmerge.push/1"
    url: str
    repository: str
    revision: str
    """The branch, or refs/pr/N."""
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
        repository: OWNER/NAME, made when it is not there, and @BRANCH for another branch than main. One that is not
            there is made from main; @refs/pr/N is a pull request that is open.
        public: a repository that is made is shown to everybody; one that is there stays as it is.
        bars: huggingface_hub shows its progress on stderr.

    Raises:
        RecipeError: `repository` is no such name, or what the merge was made of.
        SurveyError, OutputError: the folder is no finished merge, its card lacks something, or the hub refuses it.
    """
    model = check_name(repository)
    merge = ready(folder)
    refuse_source(model, _read(merge))
    who = logged_in(repository)
    before = _made(model, who, public=public)
    with nullcontext() if bars else no_bars():
        commit = _uploaded(merge, model, who)
    private, notes = bool(before.private), list(_left_beside(merge, model, before))
    notes += _still_private(model.name) if private and public else [] if private else _local_paths(merge)
    return PushRecord(
        url=f"{endpoint()}/{model.name}" + (f"/tree/{quote(model.revision, safe='')}" if model.revision else ""),
        repository=model.name,
        revision=model.revision or MAIN,
        commit=commit,
        private=private,
        files=len(merge.files),
        bytes=merge.bytes,
        base_models=list(merge.base_models),
        license=merge.licence,
        warnings=list(map(str, notes)),
    )


def _read(merge: Ready) -> dict[str, str]:
    """What each source of a merge is, by what it is called; the card may name those that were folders."""
    told = dict.fromkeys(merge.base_models, f"a base_model of {CARD}")
    return told | {str(source["source"]): f"the source of {role_of(n)}" for n, source in merge.record.sources.items()}


def check_name(repository: str) -> HubId:
    """The repository and branch of OWNER/NAME[@BRANCH].

    Raises:
        RecipeError: it is none that the hub takes, or names a commit, which nothing can be added to.
    """
    found = hub_id(repository)
    if found is None or str(found) != repository or not hub_takes(found.name):
        todo = "OWNER/NAME@BRANCH goes to another branch than main."
        raise RecipeError(f"{repository}: no name on the hub, which are OWNER/NAME", todo=todo)
    if _COMMIT.fullmatch(found.revision):
        raise RecipeError(f"{repository}: a commit, which nothing can be added to", todo="Name a branch.")
    if found.revision and (_NO_BRANCH.search(found.revision) or found.revision.startswith("refs/heads/")):
        raise RecipeError(f"{repository}: git allows no branch of that name", todo="Give it another name.")
    return found


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
        _refuse(error, check_name(repository), "")


def _made(model: HubId, who: str, *, public: bool) -> Any:
    """Make the repository and the branch unless they are there; what is in it before the push, and who sees it."""
    from huggingface_hub import HfApi

    try:
        if model.revision.startswith(REQUESTS) and not HfApi().repo_exists(model.name):
            raise _error(str(model), "there is no such repository, so no pull request", "Name a branch.")
        HfApi().create_repo(model.name, private=not public, exist_ok=True)
        if model.revision not in ("", MAIN) and not model.revision.startswith(REQUESTS):
            _make_branch(model)
        return HfApi().model_info(model.name, revision=model.revision or None)
    except Exception as error:
        _refuse(error, model, who)


def _make_branch(model: HubId) -> None:
    """Make the branch from main unless it is there.

    Raises:
        OutputError: the name is a tag's, or none of a branch.
    """
    from huggingface_hub import HfApi

    refs = HfApi().list_repo_refs(model.name)
    if any(tag.name == model.revision for tag in refs.tags):
        raise _error(str(model), f"{model.revision} is a tag, which stays where it is", "Name a branch.")
    if all(branch.name != model.revision for branch in refs.branches):
        try:
            HfApi().create_branch(model.name, branch=model.revision, exist_ok=True)
        except Exception as error:
            if status_of(error) != 400:
                raise
            found = f"the hub makes no branch {model.revision}: {said(error)}"
            raise _error(str(model), found, "Give it another name.") from error


def _uploaded(merge: Ready, model: HubId, who: str) -> str:
    """Upload the files in one go; the commit."""
    from huggingface_hub import HfApi

    message = f"Merge of {', '.join(merge.record.survey.agents)} with {merge.record.recipe['method']['name']}"
    try:
        info: Any = HfApi().upload_folder(
            repo_id=model.name,
            folder_path=merge.folder,
            commit_message=message,
            revision=model.revision or MAIN,
            ignore_patterns=[".*", "**/.*"],
        )
    except Exception as error:
        _refuse(error, model, who)
    return str(info.oid)


def _left_beside(merge: Ready, model: HubId, before: Any) -> Iterator[Note]:
    """A warning where weights of before lie beside those of the merge, whose readers might take them."""
    names = [one.rfilename for one in before.siblings or ()]
    if left := [name for name in names if name.endswith(WEIGHTS) and "/" not in name and name not in merge.files]:
        found = f"{model}: other weights lie there beside those of this merge: {shortened(left)}."
        yield Note(found, "Whoever reads the model may take them: remove them on the hub.")


def _still_private(repository: str) -> list[Note]:
    """A warning where somebody asked for a public repository, and it was there before."""
    return [Note(f"{repository} was there and is private: --public is of a repository that a push makes.", _SHOW)]


def _local_paths(merge: Ready) -> list[Note]:
    """A warning where the record and the card tell paths of this machine to everybody."""
    texts = [str(source["source"]) for source in merge.record.sources.values()]
    paths = [text for text in texts if Path(text).expanduser().is_absolute()]
    found = f"{CARD} and merge_record.json tell paths of this machine: {', '.join(paths[:3])}"
    return [Note(found, "They are public now.")] if paths else []


def _refuse(error: Exception, model: HubId, who: str) -> NoReturn:
    """Raise our error for one of the hub's."""
    from huggingface_hub.errors import RevisionNotFoundError

    if isinstance(error, MergeError):
        raise error
    repository, (owner, _, name) = str(model), model.name.partition("/")
    if isinstance(error, RevisionNotFoundError):
        found = f"the hub has no {model.revision or MAIN} there"
        raise _error(repository, found, "Name a branch, or a pull request that is open.") from error
    status, why = status_of(error), said(error)
    if status in (401, 403):
        found = f"the hub lets {who or 'this token'} not write there ({status}): {why}"
        todo = f"Make a token with write access to {owner} at {endpoint()}/settings/tokens and {LOGIN}"
        if who != owner:
            todo += f", or push to a name of your own: {who or 'YOU'}/{name}"
        raise _error(repository, found, todo) from error
    again = "Run the same command again: what was uploaded is not uploaded twice."
    if status:
        raise _error(repository, f"the hub answered {status}: {why}", again) from error
    raise _error(repository, f"the upload failed: {why}", again) from error


def _error(repository: str, found: str, todo: str) -> OutputError:
    return OutputError(f"{repository}: {found}", todo=todo, where=Where(source=repository))
