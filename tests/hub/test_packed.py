"""Packed deltas and the hub: a delta that lies there, a base that lies there, and a patch of a merge over it."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

import agentmerge
from agentmerge.deltas.look import look
from agentmerge.errors import SourceError
from agentmerge.testing import assert_same_bits, read_checkpoint
from tests.hub.server import files_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agentmerge.recipe import Recipe
    from agentmerge.record import MergeRecord
    from agentmerge.testing import Sources
    from tests.cli.conftest import Ran
    from tests.hub.server import HubServer

    Run = Callable[..., Ran]

pytestmark = pytest.mark.usefixtures("unsynced")


def _same(found: Path, expected: Path) -> None:
    theirs = read_checkpoint(expected)
    for name, array in read_checkpoint(found).items():
        assert_same_bits(array, theirs[name], name)


@pytest.mark.parametrize("name", ["model.safetensors", "code.safetensors"])
@pytest.mark.parametrize("there", [True, False])
def test_a_delta_over_a_base_on_the_hub_is_checked_from_afar_and_merged(
    on_hub: Sources, hub: HubServer, run: Run, tmp_path: Path, name: str, *, there: bool
) -> None:
    (tmp_path / "packed").mkdir()
    delta = tmp_path / "packed" / name
    agentmerge.pack(on_hub.base, on_hub.agents["code"], delta)
    if there:
        hub.add("org/packed", delta.parent)
    code = f"code={'org/packed' if there else delta}"
    done = run("check", "--base", "org/base", "--agent", code, "--agent", "tool=org/tool")
    assert done.code == 0, done.out
    assert not [*(tmp_path / "cache").rglob("model.safetensors")]
    done = run("merge", "--base", "org/base", "--agent", code, "--agent", "tool=org/tool", "--out", "out")
    assert done.code == 0, done.err
    agents = {name: str(on_hub.agents[name]) for name in ("code", "tool")}
    agentmerge.merge({"base": str(on_hub.base), "agents": agents, "method": "ram_plus"}, tmp_path / "expected")
    _same(tmp_path / "out", tmp_path / "expected")


def test_a_delta_of_another_base_on_the_hub_is_refused(
    on_hub: Sources, hub: HubServer, run: Run, tmp_path: Path
) -> None:
    agentmerge.pack(on_hub.base, on_hub.agents["code"], tmp_path / "code.safetensors")
    hub.add("org/other", on_hub.agents["memory"])
    agents = ("--agent", f"code={tmp_path / 'code.safetensors'}", "--agent", "tool=org/tool")
    done = run("merge", "--base", "org/other", *agents, "--out", "out")
    assert done.code == 2
    assert "lies over another base than org/other: the numbers differ" in done.err
    assert not (tmp_path / "out").exists()


def test_a_patch_of_a_merge_lies_over_the_commit_that_was_merged(
    on_hub: Sources, hub: HubServer, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = agentmerge.merge

    def merge(recipe: Recipe, out: Path, **options: bool) -> MergeRecord:
        record = real(recipe, out, **options)
        hub.repos["org/base"].commit(files_of(on_hub.agents["memory"]))
        return record

    monkeypatch.setattr(agentmerge, "merge", merge)
    agents = [f"--agent={name}=org/{name}" for name in ("code", "tool")]
    done = run("merge", "--base", "org/base", *agents, "--out", "out", "--patch", "patch.safetensors")
    assert done.code == 0, done.err
    agentmerge.apply(on_hub.base, "patch.safetensors", "again")
    _same(tmp_path / "again", tmp_path / "out")


def test_pack_and_apply_take_models_on_the_hub(on_hub: Sources, run: Run, tmp_path: Path) -> None:
    done = run("pack", "--base", "org/base", "--agent", "org/code", "--out", "code.safetensors")
    assert done.code == 0, done.err
    done = run("apply", "--base", "org/base", "--delta", "code.safetensors", "--out", "again")
    assert done.code == 0, done.err
    _same(tmp_path / "again", on_hub.agents["code"])


@pytest.mark.parametrize("fetched", [False, True])
def test_what_a_delta_on_the_hub_holds_is_told_and_nothing_is_fetched(
    on_hub: Sources, hub: HubServer, run: Run, tmp_path: Path, *, fetched: bool
) -> None:
    (tmp_path / "packed").mkdir()
    record = agentmerge.pack(on_hub.base, on_hub.agents["code"], tmp_path / "packed" / "code.safetensors")
    repo = hub.add("org/packed", tmp_path / "packed")
    if fetched:
        run("pack", "--base", "org/base", "--agent", "org/code", "--out", "other.safetensors")
    hub.asked.clear()
    ran = run("inspect", "org/packed", "--base", "org/base", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert (found["changed"], found["nbytes"], found["commit"]) == (record.changed, record.nbytes, repo.sha(0))
    assert found["compared"] == ("numbers" if fetched else "headers")
    assert "" not in [*hub.fetched("code.safetensors"), *hub.fetched("model.safetensors")]
    ran = run("inspect", "org/code")
    assert (ran.code, "org/code: no packed delta" in ran.err) == (2, True)


@pytest.mark.parametrize("on_the_hub", [False, True])
def test_what_is_wrong_with_a_delta_names_it_and_no_folder_of_ours(
    on_hub: Sources, hub: HubServer, tmp_path: Path, *, on_the_hub: bool
) -> None:
    shutil.copytree(on_hub.agents["code"], tmp_path / "code")
    (tmp_path / "code" / "config.json").write_text("{")
    (tmp_path / "packed").mkdir()
    delta = tmp_path / "packed" / "code.safetensors"
    agentmerge.pack(on_hub.base, tmp_path / "code", delta)
    hub.add("org/packed", delta.parent)
    hub.add("org/newer").commit({"code.safetensors": delta.read_bytes().replace(b'_delta":"1"', b'_delta":"2"')})
    text = "org/packed" if on_the_hub else str(delta)
    recipe = {"base": "org/base", "agents": {"x": text, "y": "org/newer"}, "method": "ram"}
    found = [one.found for one in agentmerge.check(recipe).findings if one.severity == "error"]
    assert any("org/newer/code.safetensors: a packed delta of version" in one for one in found), found
    recipe["agents"] = {"x": text}
    with pytest.raises(SourceError, match=r"org/newer/code\.safetensors: a packed delta of version"):
        look("org/newer")
    found = [one.found for one in agentmerge.check(recipe).findings if one.severity == "error"]
    assert any(f"{text}/config.json" in one for one in found), found
    assert not any("agentmerge-" in one for one in found)
