"""A model on the hub as base or agent: the files that are needed, once, of one commit."""

from __future__ import annotations

import json
import shutil
import warnings
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import agentmerge
from agentmerge.errors import BASE, OutputError, SourceError, SourceNotFoundError
from agentmerge.files.positional import lock_exclusive
from agentmerge.files.save import save
from agentmerge.hub import fetch
from agentmerge.hub.fetch import fetched
from agentmerge.progress import Silent
from agentmerge.sources.opening import opened
from agentmerge.tensors import Block
from agentmerge.testing import assert_source_contract, make_agents, write_checkpoint
from tests.files.torch_files import put_torch
from tests.hub.repo import READER
from tests.sources.adapters import lora, matrices, put_adapter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from huggingface_hub import constants

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.testing import Sources
    from tests.hub.server import HubServer

pytestmark = pytest.mark.usefixtures("unsynced")
W = {"w": np.arange(4, dtype=np.float32)}
JUNK = (
    "pytorch_model.bin", "pytorch_model.bin.index.json", "optimizer.pt", "scheduler.pt", "training_args.bin",
    "rng_state_0.pth", "model.gguf", "tf_model.h5", "onnx/model.onnx", "onnx/config.json", "runs/events.out.1",
    "wandb/x.json", "checkpoint-10/model.safetensors", "checkpoint-10/config.json", ".gitattributes", "train.log",
    "optimizer.safetensors", "merge_record.json", "trainer_state.json",
)  # fmt: skip


class Told(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.phases: list[list[Any]] = []

    def begin(self, phase: str, total: int, *, matrices: int = 0, flop: float = 0.0) -> None:
        self.phases.append([phase, total, 0])

    def advance(self, amount: int, *, matrices: int = 0, flop: float = 0.0) -> None:
        self.phases[-1][2] += amount


def fetch_all(text: str, **pins: str) -> Any:
    return fetched(text, Silent(), pins)


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def ids(sources: Sources) -> dict[str, Any]:
    """A recipe over the models that `on_hub` made of these."""
    return {"base": "org/base", "agents": {name: f"org/{name}" for name in sources.agents}, "method": "ram"}


def test_a_merge_of_models_on_the_hub_is_that_of_their_folders(hub: HubServer, on_hub: Sources, tmp_path: Path) -> None:
    told = Told()
    record = agentmerge.merge(ids(on_hub), tmp_path / "out", watch=told)
    agentmerge.merge(on_hub.recipe("ram"), tmp_path / "expected")
    names = ("model.safetensors", "config.json")
    assert all((tmp_path / "out" / n).read_bytes() == (tmp_path / "expected" / n).read_bytes() for n in names)
    commits = {name: source["commit"] for name, source in record.sources.items()}
    assert commits == {name: hub.repos[f"org/{name}"].sha(0) for name in ("base", *on_hub.agents)}
    assert record.recipe["base"] == "org/base"
    weights = (on_hub.base / "model.safetensors").stat().st_size
    assert [phase for phase in told.phases if phase[0] == "Fetching org/base"] == [
        ["Fetching org/base", weights, weights]
    ]
    assert hub.fetched("model.safetensors").count("") == 4

    hub.asked.clear()
    agentmerge.merge(ids(on_hub), tmp_path / "again")
    assert {path.split("/resolve")[0] for _, path, _ in hub.asked} <= {
        f"/api/models/{text}" for text in commits_of(hub)
    }


def commits_of(hub: HubServer) -> list[str]:
    return [f"{name}{end}" for name, repo in hub.repos.items() for end in ("", f"/revision/{repo.sha(0)}")]


def test_one_form_of_the_weights_is_fetched_and_nothing_of_the_training(hub: HubServer, tmp_path: Path) -> None:
    beside = dict.fromkeys(("tokenizer.json", "modeling_x.py", "README.md", "additional_chat_templates/a.jinja"), b"{}")
    write_checkpoint(tmp_path / "in", W, files={**dict.fromkeys(JUNK, b"junk"), **beside})
    hub.add("org/x", tmp_path / "in")
    found = fetch_all("org/x")
    assert names_in(found.folder) == {*beside, "config.json", "model.safetensors"}
    assert not [path for _, path, _ in hub.asked if path.endswith(JUNK[0])]


def test_of_shards_those_of_the_index_are_fetched(hub: HubServer, tmp_path: Path) -> None:
    tensors = {name: np.ones(64, np.float32) for name in "abc"}
    write_checkpoint(tmp_path / "in", tensors, shard_size=256, files={"consolidated.safetensors": b"another form"})
    hub.add("org/x", tmp_path / "in")
    found = fetch_all("hf://org/x")
    shards = {f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)}
    assert names_in(found.folder) == shards | {"model.safetensors.index.json", "config.json"}
    with opened(BASE, "hf://org/x", snapshot=found) as source:
        assert_source_contract(source)


@pytest.mark.parametrize("sharded", [False, True])
def test_where_there_are_no_safetensors_the_bin_files_are_fetched(
    hub: HubServer, tmp_path: Path, sharded: bool
) -> None:
    names = ["pytorch_model-00001-of-00001.bin" if sharded else "pytorch_model.bin"]
    put_torch(tmp_path / "in" / names[0], W)
    if sharded:
        names.append("pytorch_model.bin.index.json")
        (tmp_path / "in" / names[1]).write_text(json.dumps({"weight_map": {"w": names[0]}}))
    for junk in ("training_args.bin", "optimizer.pt"):
        (tmp_path / "in" / junk).write_bytes(b"junk")
    (tmp_path / "in" / "config.json").write_text("{}")
    hub.add("org/x", tmp_path / "in")
    found = fetch_all("org/x")
    assert names_in(found.folder) == {*names, "config.json"}
    with opened(BASE, "org/x", snapshot=found) as source:
        assert list(source.specs) == ["w"]


def test_of_an_adapter_its_matrices_and_its_config_are_fetched(hub: HubServer, tiny: Sources, tmp_path: Path) -> None:
    matrix = "model.layers.0.mlp.up_proj"
    put_adapter(tmp_path / "in", lora(matrix, *matrices(0, 67, 131, 4)))
    (tmp_path / "in" / "optimizer.pt").write_bytes(b"junk")
    hub.add("org/lora", tmp_path / "in")
    hub.add("org/base", tiny.base)
    recipe = {"base": "org/base", "agents": {"x": "org/lora"}, "method": "ram"}
    findings = agentmerge.check(recipe).findings
    assert not [finding for finding in findings if finding.severity == "error"], findings
    assert not hub.fetched("adapter_model.safetensors").count("")
    assert names_in(fetch_all("org/lora").folder) == {"adapter_model.safetensors", "adapter_config.json"}


def test_a_chain_of_deltas_comes_whole_and_other_forms_beside_it_do_not(hub: HubServer, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "in", W, files={})
    for step in (1, 2):
        delta = {"w.indices": np.array([step], np.int32), "w.values": np.array([9.0], np.float32)}
        save(tmp_path / "step", delta)
        (tmp_path / "step" / "model.safetensors").rename(tmp_path / "in" / f"delta_{step}.safetensors")
    save(tmp_path / "other", {"w": np.zeros(4, np.float16)})
    (tmp_path / "other" / "model.safetensors").rename(tmp_path / "in" / "model.fp16.safetensors")
    hub.add("org/x", tmp_path / "in")
    names = {"config.json", "model.safetensors", "delta_1.safetensors", "delta_2.safetensors"}
    assert names_in(fetch_all("org/x").folder) == names


def test_a_tag_and_a_commit_are_what_they_name(hub: HubServer, tmp_path: Path) -> None:
    repo = hub.add("org/x", write_checkpoint(tmp_path / "old", W), tags={"v1": 0})
    write_checkpoint(tmp_path / "new", {"w": np.zeros(4, np.float32)})
    hub.repos["org/x"].commit({p.name: p.read_bytes() for p in (tmp_path / "new").iterdir()})
    for text, number in {"org/x@v1": 0, "org/x": 1, f"org/x@{repo.sha(0)}": 0, "org/x@main": 1}.items():
        found = fetch_all(text)
        assert found.commit == repo.sha(number)
        with opened(BASE, text, snapshot=found) as source:
            assert source.told["commit"] == repo.sha(number)
            read = source.weights.read(Block(source.specs["w"], 0, 4))
            assert read.tolist() == (W["w"].tolist() if number == 0 else [0.0] * 4)


def test_a_folder_here_wins_over_the_hub(hub: HubServer, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "org" / "x", W)
    assert fetch_all("org/x") is None
    assert fetch_all("./org/y") is None
    assert not hub.asked


@pytest.fixture
def large(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The weights of org/x, which count as a large file."""
    monkeypatch.setattr("agentmerge.hub.large.LARGE", 1 << 20)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)
    hub.add("org/x", write_checkpoint(tmp_path / "in", {"w": np.arange(1 << 20, dtype=np.float32)}))
    return (tmp_path / "in" / "model.safetensors").read_bytes()


def object_of(content: bytes) -> str:
    return f"/objects/{sha256(content).hexdigest()}"


def part_of(content: bytes, tmp_path: Path) -> Path:
    blobs = tmp_path / "cache" / "models--org--x" / "blobs"
    blobs.mkdir(parents=True)
    return blobs / f"{sha256(content).hexdigest()}.agentmerge.part"


@pytest.mark.slow
def test_a_connection_that_breaks_goes_on_where_it_was(hub: HubServer, large: bytes) -> None:
    hub.cut[object_of(large)] = 3_000_000
    with suppress(SourceError):  # versions of huggingface_hub before 1.0 give up
        fetch_all("org/x")
    assert (fetch_all("org/x").folder / "model.safetensors").read_bytes() == large
    first, second = hub.fetched("model.safetensors")
    assert first == ""
    assert 2_900_000 < int(second.removeprefix("bytes=").removesuffix("-")) <= 3_000_000


def test_a_download_that_was_killed_goes_on_where_it_was(hub: HubServer, large: bytes, tmp_path: Path) -> None:
    part = part_of(large, tmp_path)
    part.write_bytes(large[:1_000_000])
    found = fetch_all("org/x")
    assert (found.folder / "model.safetensors").read_bytes() == large
    assert hub.fetched("model.safetensors") == ["bytes=1000000-"]
    assert [path.name for path in part.parent.iterdir() if "part" in path.name or "incomplete" in path.name] == []


@pytest.mark.parametrize("had", [b"other bytes", b"x" * 5_000_000], ids=["other bytes", "too many"])
def test_what_was_left_and_is_not_the_file_is_fetched_anew(
    hub: HubServer, large: bytes, tmp_path: Path, had: bytes
) -> None:
    part = part_of(large, tmp_path)
    part.write_bytes(had)
    if len(had) < len(large):
        with pytest.raises(SourceError, match="what came in parts has sha256"):
            fetch_all("org/x")
        assert not part.exists()
    assert (fetch_all("org/x").folder / "model.safetensors").read_bytes() == large
    assert hub.fetched("model.safetensors")[-1] == ""


@pytest.mark.parametrize("left", [True, False])
def test_a_file_that_is_there_for_another_commit_leaves_no_part(
    hub: HubServer, large: bytes, tmp_path: Path, *, left: bool
) -> None:
    part = part_of(large, tmp_path)
    fetch_all("org/x")
    if left:
        part.touch()
    hub.repos["org/x"].commit({**hub.repos["org/x"].commits[-1], "NOTES.md": b"more"})
    hub.asked.clear()
    assert (fetch_all("org/x").folder / "model.safetensors").read_bytes() == large
    assert not hub.fetched("model.safetensors")
    assert not [path for path in part.parent.iterdir() if path.name.endswith(".part")]


def test_a_part_that_another_process_fetches_is_left_to_it(hub: HubServer, large: bytes, tmp_path: Path) -> None:
    part = part_of(large, tmp_path)
    with part.open("wb") as file:
        assert lock_exclusive(file.fileno())
        file.write(large[:1000])
        file.flush()
        assert (fetch_all("org/x").folder / "model.safetensors").read_bytes() == large
    assert part.read_bytes() == large[:1000]


def test_a_download_that_failed_goes_on_with_the_files_that_are_lacking(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {name: np.ones(64, np.float32) for name in "abc"}
    repo = hub.add("org/x", write_checkpoint(tmp_path / "in", tensors, shard_size=256))
    monkeypatch.setattr(fetch, "THREADS", 1)
    last = "model-00003-of-00003.safetensors"
    hub.failing[last] = 404
    with pytest.raises(SourceError, match="404"):
        fetch_all("org/x")
    del hub.failing[last]
    hub.asked.clear()
    assert (fetch_all("org/x").folder / last).is_file()
    assert [path for method, path, _ in hub.asked if method == "HEAD"] == [f"/org/x/resolve/{repo.sha(0)}/{last}"]


def test_a_damaged_file_in_the_cache_is_named(hub: HubServer, tmp_path: Path) -> None:
    hub.add("org/x", write_checkpoint(tmp_path / "in", W))
    weights = (fetch_all("org/x").folder / "model.safetensors").resolve()
    with weights.open("r+b") as file:
        file.truncate(40)
    with pytest.raises(SourceError, match="40 bytes in the hub's cache, expected") as caught:
        fetch_all("org/x")
    assert str(weights) in caught.value.problems[0].todo


def test_too_small_a_disk_is_told_before_a_byte_comes(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/x", write_checkpoint(tmp_path / "in", W))
    usage = type(shutil.disk_usage(tmp_path))(1000, 999, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
    with pytest.raises(SourceError, match=r"are to be fetched, 1 are free in the hub's cache .* HF_HOME"):
        fetch_all("org/x")
    assert not hub.fetched("config.json")


def test_names_that_lead_out_of_the_folder_are_none(hub: HubServer, tmp_path: Path) -> None:
    repo = hub.add("org/x", write_checkpoint(tmp_path / "in", W))
    repo.commits[0] |= {"../../evil.json": b"{}", "/evil.json": b"{}", "a/../../../evil.json": b"{}"}
    assert names_in(fetch_all("org/x").folder) == {"config.json", "model.safetensors"}


def test_a_commit_that_leads_out_of_the_cache_is_none(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/x", write_checkpoint(tmp_path / "in", W))
    monkeypatch.setattr("tests.hub.server.Repo.sha", lambda repo, number: "../../../evil")
    with pytest.raises(SourceError, match=r"names the commit '\.\./\.\./\.\./evil'"):
        fetch_all("org/x")
    assert not (tmp_path / "evil").exists()


@pytest.mark.slow
def test_the_hubs_cache_is_never_an_output(hub: HubServer, on_hub: Sources, tmp_path: Path) -> None:
    agentmerge.merge(ids(on_hub), tmp_path / "out")
    root = tmp_path / "cache" / "models--org--base"
    folder = root / "snapshots" / hub.repos["org/base"].sha(0)
    for out in (root, folder, root / "blobs", tmp_path / "cache"):
        with pytest.raises(OutputError, match="lies in, or holds, the source of base"):
            agentmerge.merge(ids(on_hub), out, overwrite=True)
    (tmp_path / "alias").symlink_to(root / "blobs")
    with pytest.raises(OutputError, match="lies in, or holds"):
        agentmerge.merge(ids(on_hub), tmp_path / "alias", overwrite=True)


def test_the_large_files_place_gets_no_token(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", READER)
    hub.add("org/x", write_checkpoint(tmp_path / "in", W), private=True)
    fetch_all("org/x")
    assert hub.tokens_elsewhere == []


@pytest.mark.parametrize("same", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_killed_merge_goes_on_with_the_commit_that_it_began_with(
    hub: HubServer, on_hub: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    class Killed(Exception):
        pass

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("agentmerge.engine.merge.check_fingerprint", killed)
        with pytest.raises(Killed):
            agentmerge.merge(ids(on_hub), tmp_path / "out")
    moved = make_agents(tmp_path / "moved", seed=7).agents["code"]
    then = hub.repos["org/code"].sha(0)
    now = hub.repos["org/code"].commit({path.name: path.read_bytes() for path in moved.iterdir()})
    record = agentmerge.merge(ids(on_hub), tmp_path / "out", overwrite=not same)
    assert record.sources["code"]["commit"] == (then if same else now)
    told = [text for text in record.warnings if f"began with commit {then}" in text and now in text]
    assert len(told) == same
    expected = on_hub.recipe("ram") if same else {**on_hub.recipe("ram"), "agents": {**on_hub.agents, "code": moved}}
    agentmerge.merge(expected, tmp_path / "expected")
    name = "model.safetensors"
    assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()


def test_an_id_that_nobody_knows_is_told_with_its_role(hub: HubServer, tiny: Sources, tmp_path: Path) -> None:
    recipe = {**tiny.recipe("ram"), "base": "org/nothing"}
    with pytest.raises(SourceNotFoundError, match=r"^base: org/nothing: no such folder, and no model on the hub"):
        agentmerge.merge(recipe, tmp_path / "out")


def test_a_merge_of_models_that_is_complete_is_so_until_a_branch_moves(
    hub: HubServer, on_hub: Sources, tmp_path: Path
) -> None:
    recipe = {"base": "org/base", "agents": {"code": "org/code"}, "method": "ram"}
    record = agentmerge.merge(recipe, tmp_path / "out")
    hub.asked.clear()
    shutil.rmtree(constants.HF_HUB_CACHE)
    assert agentmerge.merge(recipe, tmp_path / "out", again=True) == record
    hub.repos["org/code"].commit({**hub.repos["org/code"].commits[-1], "NOTES.md": b"moved"})
    shutil.rmtree(constants.HF_HUB_CACHE)
    hub.asked.clear()
    with pytest.raises(OutputError, match="the folder is not empty"):
        agentmerge.merge(recipe, tmp_path / "out", again=True)
    assert "" not in hub.fetched("model.safetensors")
