"""What `check` and `--dry-run` say of models on the hub, and a merge before it fetches them: from headers alone."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import agentmerge
from agentmerge.cli.sizes import format_size
from agentmerge.errors import AlignmentError, OutputError, SourceError
from agentmerge.hub.afar import FIRST
from agentmerge.hub.look import looked_at
from agentmerge.sources.opening import opened
from agentmerge.tensors import Block
from agentmerge.testing import write_checkpoint
from tests.files.torch_files import put_torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agentmerge.testing import Sources
    from tests.hub.server import HubServer

pytestmark = pytest.mark.usefixtures("unsynced")


def recipe(**agents: str) -> dict[str, Any]:
    return {"base": "org/base", "agents": agents, "method": "ram"}


def large(folder: Path, shape: tuple[int, ...] = (2_000_000,)) -> Path:
    return write_checkpoint(folder, {"w": np.zeros(shape, np.float32)})


def test_a_check_reads_the_headers_and_says_what_a_merge_will_fetch(hub: HubServer, tmp_path: Path) -> None:
    for name in ("base", "x"):
        hub.add(f"org/{name}", large(tmp_path / name))
    found = agentmerge.check(recipe(x="org/x"))
    assert found.ok
    size = (tmp_path / "x" / "model.safetensors").stat().st_size
    commit = hub.repos["org/x"].sha(0)
    said = [one.found for one in found.findings if one.where == "agent 'x'"]
    assert f"org/x: a merge fetches {size:,} bytes of commit {commit} first" in said
    assert hub.fetched("model.safetensors") == [f"bytes=0-{FIRST - 1}"] * 2
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


@pytest.mark.slow
def test_a_long_header_is_read_to_its_end(hub: HubServer, tmp_path: Path) -> None:
    tensors = {f"model.layers.{i}.{'name' * 20}": np.zeros(100, np.float32) for i in range(2500)}
    for name in ("base", "x"):
        hub.add(f"org/{name}", write_checkpoint(tmp_path / name, tensors))
    assert agentmerge.check(recipe(x="org/x")).ok
    first, second, *_ = hub.fetched("model.safetensors")
    assert first == f"bytes=0-{FIRST - 1}"
    assert int(second.removeprefix("bytes=0-")) > FIRST


@pytest.mark.parametrize("content", [b"", b"\xff" * 9, b"version https://git-lfs.github.com/spec/v1\n" * 3])
def test_what_is_no_safetensors_file_is_refused_from_afar(hub: HubServer, tmp_path: Path, content: bytes) -> None:
    hub.add("org/base", large(tmp_path / "base"))
    hub.add("org/x", large(tmp_path / "x")).commits[0]["model.safetensors"] = content
    found = agentmerge.check(recipe(x="org/x"))
    assert [one.where for one in found.findings if one.severity == "error"] == ["agent 'x'"]


def cut_index(files: dict[str, bytes]) -> None:
    files["model.safetensors.index.json"] = json.dumps(
        {"weight_map": {"w": "model-00001-of-00002.safetensors"}}
    ).encode()


BROKEN: dict[str, tuple[Callable[[dict[str, bytes]], Any], str]] = {
    "nothing": (lambda files: files.update({"model.safetensors": b""}), "org/x/model.safetensors: "),
    "weights": (lambda files: files.update({"model.safetensors": b"\xff" * 9}), "org/x/model.safetensors: "),
    "config": (lambda files: files.update({"config.json": b"{"}), "org/x/config.json: "),
    "index": (cut_index, "org/x/model"),
    "adapter": (
        lambda files: (
            files.clear(),
            files.update({"adapter_model.safetensors": b"\xff" * 9, "adapter_config.json": b"{"}),
        ),
        "org/x",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("role", ["base", "x"])
def test_what_is_wrong_from_afar_names_the_model_and_its_file_and_no_folder_of_ours(
    hub: HubServer, on_hub: Sources, what: str, role: str
) -> None:
    spoil, told = BROKEN[what]
    spoil(hub.add("org/x", on_hub.agents["code"]).commits[0])
    base, agent = ("org/base", "org/x") if role == "x" else ("org/x", "org/code")
    found = agentmerge.check({"base": base, "agents": {"x": agent}, "method": "ram"})
    errors = [one for one in found.findings if one.severity == "error"]
    assert errors
    assert any(told in one.found for one in errors), errors
    assert "agentmerge-" not in found.model_dump_json()


@pytest.mark.usefixtures("on_hub")
def test_a_file_that_the_hub_does_not_give_is_named(hub: HubServer) -> None:
    hub.failing["/objects/"] = 500
    found = agentmerge.check(recipe(x="org/code")).findings
    assert {one.found.partition(" 500")[0] for one in found if one.severity == "error"} == {
        f"{model}: model.safetensors: the hub answered" for model in ("org/base", "org/code")
    }


def test_a_note_from_afar_names_the_model_and_its_file(hub: HubServer, tmp_path: Path) -> None:
    for name in ("base", "x"):
        hub.add(f"org/{name}", large(tmp_path / name))
    files = hub.repos["org/x"].commits[0]
    index = {"weight_map": {"w": "model.safetensors", "lost": "model.safetensors"}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    text = agentmerge.check(recipe(x="org/x")).model_dump_json()
    assert "org/x/model.safetensors" in text
    assert "agentmerge-" not in text


def test_agents_of_another_shape_are_refused_before_anything_large_is_fetched(hub: HubServer, tmp_path: Path) -> None:
    hub.add("org/base", large(tmp_path / "base"))
    hub.add("org/x", large(tmp_path / "x", (3_000_000,)))
    with pytest.raises(AlignmentError, match="agent 'x'"):
        agentmerge.merge(recipe(x="org/x"), tmp_path / "out")
    assert "" not in hub.fetched("model.safetensors")


def test_pytorch_files_are_looked_at_once_they_are_here(hub: HubServer, on_hub: Sources, tmp_path: Path) -> None:
    put_torch(tmp_path / "in" / "pytorch_model.bin", {"w": np.arange(4, dtype=np.float32)})
    hub.add("org/x", tmp_path / "in")
    found = [one for one in agentmerge.check(recipe(x="org/x")).findings if one.severity == "error"]
    assert ["its weights are PyTorch files" in one.found for one in found] == [True]
    with pytest.raises(AlignmentError):
        agentmerge.merge(recipe(x="org/x"), tmp_path / "out")
    assert hub.fetched("pytorch_model.bin") == [""]


@pytest.mark.slow
def test_a_dry_run_fetches_nothing_and_says_how_much_it_would(
    hub: HubServer, on_hub: Sources, run: Callable[..., Any], tmp_path: Path
) -> None:
    words = ["merge", "--base", "org/base", "--agent", "x=org/code", "--agent", f"y={on_hub.agents['tool']}", "--out"]
    ran = run(*words, "out", "--dry-run")
    assert (ran.code, ran.err) == (0, "")
    size = 2 * (on_hub.base / "model.safetensors").stat().st_size
    assert f"fetch   {format_size(size)} from the hub first" in ran.out
    assert json.loads(run(*words, "out", "--dry-run", "--json").out)["fetch_bytes"] == size
    assert "" not in hub.fetched("model.safetensors")
    assert run(*words, "out", "--quiet").code == 0
    assert json.loads(run(*words, "again", "--dry-run", "--json").out)["fetch_bytes"] == 0
    assert "from the hub" not in run(*words, "again", "--dry-run").out


def test_weights_that_are_not_here_are_never_read_as_zeros(hub: HubServer, tmp_path: Path) -> None:
    hub.add("org/x", large(tmp_path / "x"))
    with ExitStack() as stack:
        source = stack.enter_context(opened(None, "org/x", snapshot=looked_at("org/x", stack, {})))
        block = Block(source.specs["w"], 0, 4)
        with pytest.raises(SourceError, match="org/x: w is not downloaded"):
            source.weights.read(block)
        assert source.weights.extents(block).parts == ()


@pytest.mark.parametrize("again", [False, True])
def test_an_output_that_is_taken_is_told_before_anything_large_is_fetched(
    hub: HubServer, on_hub: Sources, tmp_path: Path, *, again: bool
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"notes\.txt"):
        agentmerge.merge(recipe(x="org/code"), tmp_path / "out", again=again)
    assert "" not in hub.fetched("model.safetensors")
