"""Data files from the hub, as the JSON lines that the suites read; asked for by a command, never on the way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentmerge.errors import EvalError, OutputError, Where
from agentmerge.eval.data import read_rows
from agentmerge.eval.lines import write_lines
from agentmerge.eval.suites import suite_of

if TYPE_CHECKING:
    from agentmerge.eval.data import Hub, Need
    from agentmerge.eval.suite import DataFile, Given


def fetch(suite: str, given: Given, *, overwrite: bool = False) -> list[DataFile]:
    """Put the data files of a suite into the data folder.

    Args:
        suite: its name.
        given: the data folder.
        overwrite: fetch those again that are there.

    Returns:
        What is there now.

    Raises:
        EvalError: the suite's data are not on the hub, or the hub can't be reached, or what it has is not as expected.
        OutputError: the folder can't be written to.
    """
    needs = [need for need in suite_of(suite).make("paper", given).needs() if need.hub]
    if given.data_dir is None:
        raise EvalError("eval fetch: no --data-dir is given", todo="Give the folder that the files go to.")
    if not needs:
        raise EvalError(f"{suite}: nothing of it is on the hub", todo="`agentmerge eval doctor` says what it needs.")
    try:
        given.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{given.data_dir}: can't be made: {error.strerror}") from error
    for need in needs:
        if overwrite or need.path(given) is None:
            _fetch(need, given.data_dir / need.name)
    return [need.file(given) for need in needs]


def _fetch(need: Need, path: Path) -> None:
    assert need.hub is not None
    part = path.with_name(f"part-{path.name}")  # the end of a name tells JSON lines from a list
    try:
        if need.hub.file:
            shutil.copyfile(_file(need.hub), part)
        else:
            write_lines(part, _rows(need.hub))
        read_rows(part, need.fields)
        part.replace(path)
    except EvalError:
        raise
    except Exception as error:  # of several libraries, for many reasons
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise EvalError(
            f"{need.origin}: can't be fetched: {reason[:300]}",
            todo=f"Where the hub can't be reached, fetch it elsewhere and put it in the data folder as {need.name}: "
            f"JSON lines with {', '.join(need.fields)}.",
            where=Where(path=str(path)),
        ) from None
    finally:
        part.unlink(missing_ok=True)


def _file(hub: Hub) -> Path:
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(hub.repository, hub.file, repo_type="dataset"))


def _rows(hub: Hub) -> list[dict[str, Any]]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise EvalError(f"{hub.repository}: needs the library datasets:", todo="pip install datasets.") from None
    found = load_dataset(hub.repository, hub.configuration or None, split=hub.split)
    return [json.loads(json.dumps(dict(row))) for row in found]
