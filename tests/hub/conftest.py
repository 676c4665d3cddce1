"""A hub on this machine, and a cache of its own for what comes from it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import run  # noqa: F401 - the command line as a user has it
from tests.hub.server import HubServer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from huggingface_hub import constants, file_download

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentmerge.testing import Sources


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """An empty hub, which huggingface_hub asks from now on; nobody is logged in."""
    server = HubServer()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    for module in (constants, file_download):  # made of the endpoint at import; versions before 1.0 look in the second
        monkeypatch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    yield server
    server.close()


@pytest.fixture
def on_hub(hub: HubServer, tiny: Sources) -> Sources:
    """A base and three agents as org/base, org/code, org/memory and org/tool; what they are made of is `tiny`."""
    hub.add("org/base", tiny.base)
    for name, folder in tiny.agents.items():
        hub.add(f"org/{name}", folder)
    return tiny
