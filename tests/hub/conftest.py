"""A hub on this machine, and a cache of its own for what comes from it."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import agentmerge
from agentmerge.testing import make_agents
from tests.cli.conftest import run  # noqa: F401 - the command line as a user has it
from tests.hub.server import HubServer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from huggingface_hub import constants, file_download

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentmerge.testing import Sources


@contextmanager
def asked(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """An empty hub, which huggingface_hub asks from now on, with its cache in a folder; nobody is logged in."""
    server = HubServer()
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    for module in (constants, file_download):  # made of the endpoint at import; versions before 1.0 look in the second
        patch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
    patch.setattr(constants, "ENDPOINT", server.url)
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True, raising=False)
    patch.setattr(constants, "HF_HUB_CACHE", str(folder / "cache"))
    patch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))
    patch.delenv("HF_TOKEN", raising=False)
    yield server
    server.close()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """An empty hub, asked from the test's own folder."""
    monkeypatch.chdir(tmp_path)
    with asked(tmp_path, monkeypatch) as server:
        yield server


@pytest.fixture(scope="session")
def merge_of_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A merge of org/code, org/memory and org/tool on the hub, whose base has a licence."""
    folder = tmp_path_factory.mktemp("merged")
    tiny = make_agents(folder / "in")
    (tiny.base / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    with pytest.MonkeyPatch.context() as patch, asked(folder, patch) as server:
        for name, made in {"base": tiny.base, **tiny.agents}.items():
            server.add(f"org/{name}", made)
        agents = {name: f"org/{name}" for name in tiny.agents}
        agentmerge.merge({"base": "org/base", "agents": agents, "method": "ram"}, folder / "out")
    return folder / "out"


@pytest.fixture
def on_hub(hub: HubServer, tiny: Sources) -> Sources:
    """A base and three agents as org/base, org/code, org/memory and org/tool; what they are made of is `tiny`."""
    hub.add("org/base", tiny.base)
    for name, folder in tiny.agents.items():
        hub.add(f"org/{name}", folder)
    return tiny
