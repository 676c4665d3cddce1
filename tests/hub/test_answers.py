"""What the hub, the network or the cache refuses: the real reason, and what to do."""

from __future__ import annotations

import errno
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import agentmerge
from agentmerge.errors import SourceError, SourceNotFoundError
from agentmerge.hub.fetch import fetched
from agentmerge.hub.look import looked_at
from agentmerge.progress import Silent
from agentmerge.testing import write_checkpoint
from tests.hub.repo import READER, WRITER

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from huggingface_hub import constants

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.testing import Sources
    from tests.hub.server import HubServer

W = {"w": np.arange(4, dtype=np.float32)}


@pytest.fixture
def repo(hub: HubServer, tmp_path: Path) -> Any:
    return hub.add("org/x", write_checkpoint(tmp_path / "in", W))


def fetch_all(text: str) -> Any:
    return fetched(text, Silent(), {})


def refusal(text: str = "org/x", kind: type[Exception] = SourceError) -> str:
    with pytest.raises(kind) as caught:
        fetch_all(text)
    return str(caught.value)


def test_a_gated_model_says_where_to_ask_and_how_to_log_in(hub: HubServer, repo: Any) -> None:
    repo.gated = True
    said = refusal()
    assert "org/x: gated, and the hub does not know who asks (401)" in said
    assert f"Ask for access at {hub.url}/org/x, then log in with `hf auth login`, or set HF_TOKEN" in said


def test_a_gated_model_says_that_this_account_is_not_let_in(
    hub: HubServer, repo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.gated, repo.members = True, (WRITER,)
    monkeypatch.setenv("HF_TOKEN", READER)
    said = refusal()
    assert "org/x: gated, and this account is not let in (403)" in said
    assert "wait until it is granted" in said
    repo.members = (READER,)
    assert (fetch_all("org/x").folder / "model.safetensors").is_file()


def test_a_private_model_is_none_that_you_may_see(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    repo.private, repo.members = True, (WRITER,)
    assert "no model on the hub that you may see (401)" in refusal(kind=SourceNotFoundError)
    monkeypatch.setenv("HF_TOKEN", READER)
    assert "no model on the hub that you may see (404)" in refusal(kind=SourceNotFoundError)
    monkeypatch.setenv("HF_TOKEN", WRITER)
    assert fetch_all("org/x").commit == repo.sha(0)


def test_a_token_that_the_hub_does_not_take_is_told(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    assert "the hub does not accept the token (401). Get one at" in refusal()


def test_a_revision_that_is_not_there_is_told(hub: HubServer, repo: Any) -> None:
    said = refusal("org/x@v9", SourceNotFoundError)
    assert "org/x has no revision v9 on the hub" in said
    assert f"{hub.url}/org/x/tree/main" in said


def test_a_name_that_no_hub_has_is_no_model(hub: HubServer) -> None:
    assert "no model on the hub that you may see (no such name)" in refusal("org/a--b", SourceNotFoundError)


@pytest.mark.parametrize("status", [500, 503])
def test_a_hub_that_fails_is_told_with_its_status(hub: HubServer, repo: Any, status: int) -> None:
    hub.failing["/api/models"] = status
    assert f"org/x: the hub answered {status}" in refusal()


def test_offline_the_cache_is_read_without_a_request(
    hub: HubServer, repo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = fetch_all("org/x")
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    now = fetch_all("org/x")
    assert (now.folder, now.commit) == (then.folder, then.commit)
    assert [note.severity for note in now.notes] == ["note"]
    assert fetch_all(f"org/x@{then.commit}").folder == then.folder
    assert not hub.asked
    said = refusal("org/y", SourceNotFoundError)
    assert "org/y: no such folder, and HF_HUB_OFFLINE is set" in said
    assert "hf download org/y --local-dir org/y" in said


def test_without_a_network_the_cache_is_read_with_a_warning(
    hub: HubServer, repo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    then = fetch_all("org/x")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    (note,) = fetch_all("org/x").notes
    assert note.severity == "warning"
    assert "the hub can't be reached (" in note.found
    assert f"commit {then.commit}, which is in the hub's cache, is read" in note.found
    assert "the hub can't be reached" in refusal("org/y", SourceNotFoundError)


@pytest.mark.parametrize("text", ["org/x", "org/x@v1"])
def test_looked_at_and_fetched_it_is_the_same_where_the_hub_can_not_be_asked(
    hub: HubServer, repo: Any, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    repo.tags["v1"] = 0
    then = fetch_all(text)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with ExitStack() as stack:
        now = looked_at(text, stack, {})
        assert now == fetch_all(text)
        assert now is not None
        assert (now.folder, now.commit, now.headers_only) == (then.folder, then.commit, False)
        assert looked_at("./org/x", stack, {}) is None
        with pytest.raises(SourceNotFoundError, match="the hub can't be reached"):
            looked_at("org/y", stack, {})


def test_a_model_that_was_fetched_in_part_is_not_read_offline(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {name: np.ones(64, np.float32) for name in "abc"}
    write_checkpoint(tmp_path / "org" / "base", tensors)
    hub.add("org/x", write_checkpoint(tmp_path / "in", tensors, shard_size=256))
    (fetch_all("org/x").folder / "model-00002-of-00003.safetensors").unlink()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    recipe = {"base": "org/base", "agents": {"x": "org/x"}, "method": "ram"}
    with pytest.raises(SourceNotFoundError, match="1 of its 3 files are not there: model-00002-of-00003"):
        agentmerge.merge(recipe, tmp_path / "out")


def test_all_that_cannot_be_fetched_is_told_at_once(on_hub: Sources, hub: HubServer, tmp_path: Path) -> None:
    hub.repos["org/code"].gated = True
    recipe = {"base": "org/bas", "agents": {"code": "org/code", "tool": "org/tool@v2"}, "method": "ram"}
    found = {(finding.where, finding.severity) for finding in agentmerge.check(recipe).findings}
    assert found == {("base", "error"), ("agent 'code'", "error"), ("agent 'tool'", "error")}


def test_a_download_that_breaks_off_goes_on_when_the_command_is_given_again(
    hub: HubServer, repo: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ConnectionResetError("reset by peer")

    with monkeypatch.context() as patch:
        patch.setattr("agentmerge.hub.fetch.bring", broken)
        said = refusal()
    assert "org/x: config.json: fetching it broke off (reset by peer). Run the same command again" in said
    assert (fetch_all("org/x").folder / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no space is left for it in the hub's cache. Free some"),
        (PermissionError(errno.EACCES, "Permission denied"), "the hub's cache can't be written"),
    ],
)
def test_a_cache_that_takes_nothing_is_told(
    repo: Any, monkeypatch: pytest.MonkeyPatch, error: OSError, told: str
) -> None:
    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr("agentmerge.hub.fetch.bring", fails)
    said = refusal()
    assert told in said
    assert "HF_HOME" in said
