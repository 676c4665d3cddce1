"""Packed deltas of one base become one without it, as RAM merges them, where no two agents changed the same."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import apply, join, merge, pack
from agentmerge.errors import AlignmentError, DataError, MergeError, OutputError, RecipeError, SourceError
from agentmerge.sources.packed_format import CHUNK
from agentmerge.tensors import DTYPES
from agentmerge.testing import assert_same_tensors, read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentmerge.tensors import Array

pytestmark = pytest.mark.usefixtures("unsynced")
BF16 = DTYPES["BF16"]
SIZES = {"dense": 2 * CHUNK + 67, "sparse": CHUNK + 1, "one": 4097, "none": 65, "tiny": 3}
DTYPE = {"dense": "BF16", "sparse": "F32", "one": "F16", "none": "BF16", "tiny": "BF16"}


def base() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(0, 1, size).astype(DTYPES[DTYPE[name]]) for name, size in SIZES.items()}


def stepped(array: Array, where: Array) -> Array:
    bits = array.view(f"u{array.itemsize}").copy()
    bits[where] += 1 if array.itemsize == 2 else 1 << 12
    return bits.view(array.dtype)


def split(agents: int, share: Mapping[str, float]) -> list[dict[str, Array]]:
    """Agents of which each changed elements of its own."""
    rng, tensors = np.random.default_rng(1), base()
    found: list[dict[str, Array]] = [dict(tensors) for _ in range(agents)]
    for name, array in tensors.items():
        owner = np.where(rng.random(array.size) < share[name], rng.integers(0, agents, array.size), -1)
        for t, agent in enumerate(found):
            agent[name] = stepped(array, owner == t)
    return found


def put(folder: Path, agents: list[dict[str, Array]], **files: bytes) -> dict[str, Path]:
    write_checkpoint(folder / "base", base(), files={"tokenizer.json": b"{}"})
    deltas = {}
    for t, tensors in enumerate(agents):
        path = write_checkpoint(folder / f"agent{t}", tensors, files={"tokenizer.json": b"{}"} | files)
        deltas[f"agent{t}"] = folder / f"agent{t}.safetensors"
        pack(folder / "base", path, deltas[f"agent{t}"])
    return deltas


SHARE = {"dense": 0.9, "sparse": 0.01, "one": 1.0, "none": 0.0, "tiny": 0.0}


def test_it_is_what_ram_merges_with_the_base(tmp_path: Path) -> None:
    deltas = put(tmp_path, split(3, SHARE))
    shutil.move(tmp_path / "base", tmp_path / "away")
    record = join(deltas, tmp_path / "joined.safetensors", workers=2)
    shutil.move(tmp_path / "away", tmp_path / "base")
    apply(tmp_path / "base", tmp_path / "joined.safetensors", tmp_path / "applied")
    agents = {name: str(path) for name, path in deltas.items()}
    recipe = {"base": str(tmp_path / "base"), "agents": agents, "method": {"name": "ram", "threshold": 0}}
    merged = merge(recipe, tmp_path / "merged")
    assert_same_tensors(read_checkpoint(tmp_path / "applied"), read_checkpoint(tmp_path / "merged"))
    assert {name: agent.changed for name, agent in merged.survey.agents.items()} == record.changed
    assert (tmp_path / "applied/tokenizer.json").read_bytes() == b"{}"
    assert json.loads((tmp_path / "applied/config.json").read_bytes())["model_type"] == "tiny"


def test_the_joined_delta_is_an_agent_whose_fingerprint_fits(tmp_path: Path) -> None:
    deltas = put(tmp_path, split(2, SHARE))
    joined = tmp_path / "joined.safetensors"
    join(deltas, joined)
    recipe = {"base": str(tmp_path / "base"), "agents": {"both": str(joined)}, "method": "ram"}
    merge(recipe, tmp_path / "merged")  # the end of a merge compares the fingerprint
    assert read_checkpoint(tmp_path / "merged").keys() == base().keys()


def test_a_tensor_that_one_agent_changed_whole_stays_whole(tmp_path: Path) -> None:
    first, second = split(2, {**dict.fromkeys(SIZES, 0.0), "sparse": 0.1})
    first["dense"] = stepped(base()["dense"], np.ones(SIZES["dense"], np.bool_))
    deltas = put(tmp_path, [first, second])
    join(deltas, tmp_path / "joined.safetensors")
    apply(tmp_path / "base", tmp_path / "joined.safetensors", tmp_path / "applied")
    found = read_checkpoint(tmp_path / "applied")
    assert found["dense"].tobytes() == first["dense"].tobytes()


def test_shared_elements_are_refused_with_their_number_and_place(tmp_path: Path) -> None:
    first, second = split(2, SHARE)
    for place in (5, CHUNK + 3, 2 * CHUNK + 66):
        for agent in (first, second):
            agent["dense"] = agent["dense"].copy()
            agent["dense"][place] = 77
    deltas = put(tmp_path, [first, second])
    with pytest.raises(DataError, match=r"3 of .* elements \(.*%\) are changed by several .* dense \(3\)") as caught:
        join(deltas, tmp_path / "joined.safetensors")
    assert "--base" in str(caught.value)
    assert not (tmp_path / "joined.safetensors").exists()


def test_deltas_of_different_bases_are_refused(tmp_path: Path) -> None:
    deltas = put(tmp_path, split(2, SHARE))
    other = base()
    other["none"] = other["none"] * BF16.type(2)
    write_checkpoint(tmp_path / "other", other)
    tensors = {**other, "one": stepped(other["one"], np.arange(4097) == 3)}
    pack(tmp_path / "other", write_checkpoint(tmp_path / "third", tensors), tmp_path / "third.safetensors")
    with pytest.raises(AlignmentError, match=r"another base than those of agent 'agent0'.*none"):
        join({**deltas, "third": tmp_path / "third.safetensors"}, tmp_path / "joined.safetensors")


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"agent1": None}, RecipeError, "two or more"),
        ({"agent1": "agent0"}, SourceError, "no packed delta"),
        ({"agent1": "gone"}, SourceError, "no packed delta"),
    ],
)
def test_what_is_no_set_of_deltas_is_refused(
    tmp_path: Path, change: dict[str, str | None], error: type[MergeError], match: str
) -> None:
    deltas = put(tmp_path, split(2, SHARE))
    given = {n: tmp_path / p if p else None for n, p in {**{n: p.name for n, p in deltas.items()}, **change}.items()}
    with pytest.raises(error, match=match):
        join({name: path for name, path in given.items() if path is not None}, tmp_path / "joined.safetensors")


def test_a_damaged_delta_ends_the_run_and_nothing_appears(tmp_path: Path) -> None:
    deltas = put(tmp_path, split(2, SHARE))
    raw = bytearray(deltas["agent1"].read_bytes())
    deltas["agent1"].write_bytes(raw[: len(raw) // 2])
    with pytest.raises(SourceError):
        join(deltas, tmp_path / "joined.safetensors")
    assert not list(tmp_path.glob("*joined*"))


def test_an_input_is_never_replaced(tmp_path: Path) -> None:
    deltas = put(tmp_path, split(2, SHARE))
    with pytest.raises(OutputError):
        join(deltas, deltas["agent0"], overwrite=True)


def test_config_that_every_agent_has_otherwise_is_refused(tmp_path: Path) -> None:
    agents: Any = split(2, SHARE)
    deltas = put(tmp_path, agents)
    for t, (name, path) in enumerate(deltas.items()):
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": f"tiny{t}"}))
        path.unlink()
        pack(tmp_path / "base", tmp_path / name, path)
    with pytest.raises(AlignmentError, match="config"):
        join(deltas, tmp_path / "joined.safetensors")


def test_the_command_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from agentmerge.cli import app  # late: the command line takes a while

    deltas = put(tmp_path, split(2, SHARE))
    words = [word for name, path in deltas.items() for word in ("--agent", f"{name}={path}")]
    app(["join", *words, "--out", str(tmp_path / "joined.safetensors"), "--quiet", "--json"], standalone_mode=False)
    assert set(json.loads(capsys.readouterr().out)["agents"]) == {"agent0", "agent1"}
