"""An agent packed and applied is the same agent, byte for byte; packed, it is an agent like any other."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import apply, merge, pack
from agentmerge.deltas import pack as packing
from agentmerge.errors import RecipeError
from agentmerge.files.header import header_of
from agentmerge.sources.opening import opened
from agentmerge.sources.packed_format import CHUNK, entries_of, smallest
from agentmerge.tensors import DTYPES, Block, TensorSpec
from agentmerge.testing import (
    assert_same_tensors,
    assert_source_contract,
    make_agents,
    read_checkpoint,
    write_checkpoint,
)
from tests.sources.test_delta import changes, over, put_delta, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from agentmerge.tensors import Array

BF16 = DTYPES["BF16"]


def sums(folder: Path) -> dict[str, str]:
    """sha256 of every file."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): sha256(path.read_bytes()).hexdigest() for path in files}


def bits(array: Array) -> Array:
    return np.array(array).view(f"u{array.itemsize}")


def counting(read: Callable[..., Array], counted: list[Block]) -> Callable[..., Array]:
    """`read`, and what it was asked for."""

    def both(block: Block, out: Array | None = None) -> Array:
        counted.append(block)
        return read(block, out)

    return both


def odd_base() -> dict[str, Array]:
    """Every kind of dtype; sizes around a word and a chunk; some without elements or axes."""
    rng = np.random.default_rng(0)
    sizes = {
        "bf16": 2 * CHUNK + 67,
        "f32": CHUNK + 1,
        "f16": 4097,
        "f64": 63,
        "i64": 65,
        "u64": 300,
        "u8": 1031,
        "bool": 7,
    }
    found = {name: rng.integers(0, 2, size).astype(DTYPES[name.upper()]) for name, size in sizes.items()}
    found["bf16"] = rng.standard_normal(sizes["bf16"]).astype(BF16)
    found["f8_e4m3"] = rng.integers(0, 100, 300).astype(np.uint8).view(DTYPES["F8_E4M3"]).reshape(3, 100)
    return {**found, "scalar": np.array(3, BF16), "empty": np.empty((0, 5), BF16), "same": np.ones((3, 4), BF16)}


def odd_agent(base: Mapping[str, Array], density: float) -> dict[str, Array]:
    """Other bits in a share of the places, of whatever they are: NaN payloads and -0.0 among them."""
    rng = np.random.default_rng(1)
    found = {}
    for name, array in base.items():
        old = bits(array)
        new = old ^ (1 if name == "bool" else rng.integers(0, 1 << 7, old.shape).astype(old.dtype))
        mixed = old if name == "same" else np.where(rng.random(old.shape) < density, new, old)
        found[name] = np.asarray(mixed, old.dtype).view(array.dtype)
    special = found["bf16"].reshape(-1).view(np.uint16)
    special[:6] = [0x8000, 0x0000, 0x7FC1, 0xFF81, 0x7F80, 0x0001]  # -0.0, 0.0, two NaNs, inf, a denormal
    return found


@pytest.mark.parametrize("density", [0.0, 0.01, 0.3, 0.99])
def test_every_dtype_at_every_density_comes_back_bit_for_bit(tmp_path: Path, density: float) -> None:
    base = odd_base()
    base["bf16"].reshape(-1).view(np.uint16)[:2] = [0x0000, 0x8000]
    agent = odd_agent(base, density)
    write_checkpoint(tmp_path / "base", base)
    write_checkpoint(tmp_path / "agent", agent)
    record = pack(tmp_path / "base", tmp_path / "agent", tmp_path / "d.safetensors")
    assert record.changed == sum(int((bits(array) != bits(base[name])).sum()) for name, array in agent.items())
    with over(tmp_path / "base", tmp_path / "d.safetensors") as source:
        assert_source_contract(source)
        assert_same_tensors(whole(source), agent)
    apply(tmp_path / "base", tmp_path / "d.safetensors", tmp_path / "out")
    assert sums(tmp_path / "out") == sums(tmp_path / "agent")


def test_each_tensor_has_the_smallest_form() -> None:
    spec = TensorSpec("w", "BF16", (1 << 20,))
    for density in (0, 1e-6, 0.01, 0.031, 0.0315, 0.33, 0.5, 0.93, 0.94, 1):
        changed = int(density * spec.elements)
        sizes = {
            form: sum(entry.nbytes for entry in entries_of(spec, form, changed))  # type: ignore[arg-type]
            for form in ("indices", "bitmap", "whole")
        }
        assert smallest(spec, changed) == ("same" if changed == 0 else min(sizes, key=lambda form: sizes[form]))
    huge = TensorSpec("w", "BF16", (1 << 31,))
    assert smallest(huge, 5) == "bitmap"  # an int32 does not hold its places
    assert smallest(spec, 5, sparse=False) == "whole"


def test_files_come_back_as_they_were_whatever_their_headers_and_shards(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in", shard_size=20_000)
    agent = tmp_path / "in" / "code"
    shard = next(iter(sorted(agent.glob("*.safetensors"))))
    raw = shard.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    text = json.dumps(
        json.loads(raw[8 : 8 + length]) | {"__metadata__": {"format": "pt", "of": "x"}}, indent=3
    ).encode()
    shard.write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])  # of another writer's making
    (made.base / "tokenizer.json").write_bytes(b"{}" * 500)
    (agent / "tokenizer.json").write_bytes(b"{}" * 500)
    (agent / "README.md").write_text("card")
    (agent / ".gitattributes").write_text("lfs")
    (agent / "assets").mkdir()
    (agent / "assets" / "a.txt").write_text("a")
    record = pack(made.base, agent, tmp_path / "d.safetensors")
    assert record.same_files
    assert record.files == [".gitattributes", "README.md", "assets/a.txt"]
    apply(made.base, tmp_path / "d.safetensors", tmp_path / "out")
    assert sums(tmp_path / "out") == sums(agent)
    apply(made.base, tmp_path / "d.safetensors", tmp_path / "out", overwrite=True)  # again


def test_what_is_not_kept_is_told(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in")
    agent = made.agents["code"]
    for name in ("optimizer.pt", "pytorch_model.bin", "trainer_state.json", "runs/events.out.1"):
        (agent / name).parent.mkdir(exist_ok=True)
        (agent / name).write_bytes(b"x")
    (agent / "runs" / ".hidden").mkdir()
    record = pack(made.base, agent, tmp_path / "d.safetensors")
    assert record.left == ["optimizer.pt", "pytorch_model.bin", "runs/", "trainer_state.json"]


def test_tensors_that_only_one_side_has_are_kept_or_named(tmp_path: Path) -> None:
    base = {"both": np.ones(300, BF16), "gone": np.ones(4, BF16), "wide": np.ones(9, np.float32)}
    agent = {"new": np.full(5, 2, BF16), "both": np.full(300, 3, BF16), "wide": np.ones(9, BF16)}
    write_checkpoint(tmp_path / "base", base)
    write_checkpoint(tmp_path / "agent", agent)
    record = pack(tmp_path / "base", tmp_path / "agent", tmp_path / "d.safetensors")
    assert record.without_base == ["new", "wide"]
    assert record.unlike == ["wide"]
    assert record.lacking == ["gone"]
    assert (record.elements, record.changed, record.uncompared) == (314, 314, 14)
    [warning] = record.warnings
    assert "1 tensors are BF16, where the base has F32" in warning
    with over(tmp_path / "base", tmp_path / "d.safetensors") as source:
        assert_source_contract(source)
        assert_same_tensors(whole(source), agent)


def test_names_with_a_trainers_prefix_are_compared_and_kept(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in")
    agent = {f"module.{name}": array for name, array in read_checkpoint(made.agents["code"]).items()}
    write_checkpoint(tmp_path / "agent", agent)
    record = pack(made.base, tmp_path / "agent", tmp_path / "d.safetensors")
    assert not record.without_base
    assert not record.lacking
    apply(made.base, tmp_path / "d.safetensors", tmp_path / "out")
    assert sums(tmp_path / "out") == sums(tmp_path / "agent")


def test_tensors_named_like_entries_do_no_harm(tmp_path: Path) -> None:
    base = {
        "x": np.ones(500, BF16),
        "x.values": np.ones(500, BF16),
        "y.bitmap": np.ones(500, BF16),
        "y": np.ones(9, BF16),
    }
    agent = {name: array.copy() for name, array in base.items()}
    for array in agent.values():
        array[3] = 7
    write_checkpoint(tmp_path / "base", base)
    write_checkpoint(tmp_path / "agent", agent)
    pack(tmp_path / "base", tmp_path / "agent", tmp_path / "d.safetensors")
    with over(tmp_path / "base", tmp_path / "d.safetensors") as source:
        assert_same_tensors(whole(source), agent)
        forms = {name: tensor.form for name, tensor in source.weights.packed.items()}  # type: ignore[attr-defined]
    assert forms == {"x": "whole", "x.values": "indices", "y.bitmap": "indices", "y": "whole"}


def test_other_forms_of_agents_are_packed_and_applied_as_checkpoints(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in")
    base, agent = read_checkpoint(made.base), read_checkpoint(made.agents["code"])
    other = put_delta(tmp_path / "trl.safetensors", changes(base, agent), 1)
    record = pack(made.base, other, tmp_path / "d.safetensors")
    assert not record.same_files
    for i, delta in enumerate((other, tmp_path / "d.safetensors")):
        apply(made.base, delta, tmp_path / f"out{i}")
        assert_same_tensors(read_checkpoint(tmp_path / f"out{i}"), agent)
        assert (tmp_path / f"out{i}" / "config.json").read_bytes() == (made.base / "config.json").read_bytes()


def test_a_delta_is_small_and_readers_of_indices_find_theirs(tmp_path: Path) -> None:
    base = {"w": np.zeros((400, 500), BF16)}
    agent = {"w": base["w"].copy()}
    agent["w"].reshape(-1)[[5, 70_000, 199_999]] = 1
    write_checkpoint(tmp_path / "base", base)
    write_checkpoint(tmp_path / "agent", agent)
    record = pack(tmp_path / "base", tmp_path / "agent", tmp_path / "d.safetensors")
    assert record.nbytes < 5_000
    with opened(None, str(tmp_path / "base")) as _, (tmp_path / "d.safetensors").open("rb") as stream:
        header = header_of(stream.fileno(), tmp_path / "d.safetensors")
    raw = (tmp_path / "d.safetensors").read_bytes()[header.data_start :]
    assert header.metadata["sparse"] == "true"
    assert header.metadata["changed_params"] == "3"
    entry = header.tensors["w.indices"]
    assert np.frombuffer(raw[entry.begin : entry.end], np.int32).tolist() == [5, 70_000, 199_999]


def test_a_block_reads_only_what_it_needs(tmp_path: Path) -> None:
    size = 20 * CHUNK
    base = {"w": np.zeros(size, BF16)}
    for density, form in ((0.01, "indices"), (0.5, "bitmap")):
        rng = np.random.default_rng(0)
        agent = {"w": np.where(rng.random(size) < density, 1, 0).astype(BF16)}
        write_checkpoint(tmp_path / "base", base)
        write_checkpoint(tmp_path / "agent", agent)
        pack(tmp_path / "base", tmp_path / "agent", tmp_path / "d.safetensors", overwrite=True)
        with over(tmp_path / "base", tmp_path / "d.safetensors") as source:
            weights: Any = source.weights
            assert weights.packed["w"].form == form
            counted: list[Block] = []
            weights.ranks("w")
            weights.file.read = counting(weights.file.read, counted)
            block = Block(source.specs["w"], 3 * CHUNK + 100, 5 * CHUNK - 7)
            assert (source.weights.read(block) == agent["w"][block.start : block.stop]).all()
            assert len(counted) == 2
            assert sum(b.elements for b in counted) <= 2 * CHUNK * (
                1 / 8 if form == "bitmap" else density * 1.2
            ) + 1.2 * (density * 2 * CHUNK)
            parts = weights.extents(block).parts
            assert sum(part.nbytes for part in parts[1:]) < 2 * CHUNK * 2


def test_a_merge_of_packed_agents_has_the_bytes_of_a_merge_of_whole_ones(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in")
    files = {name: tmp_path / f"{name}.safetensors" for name in made.agents}
    for name, path in made.agents.items():
        pack(made.base, path, files[name])
    for method in ("ram_plus", "ties"):
        whole_record = merge(made.recipe(method), tmp_path / "a", overwrite=True)
        recipe = {"base": str(made.base), "agents": {n: str(p) for n, p in files.items()}, "method": method}
        record = merge(recipe, tmp_path / "b", overwrite=True)
        assert record.warnings == whole_record.warnings
        assert sums(tmp_path / "a")["model.safetensors"] == sums(tmp_path / "b")["model.safetensors"]
        assert record.survey == whole_record.survey


def test_groups_and_blocks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = odd_base()
    write_checkpoint(tmp_path / "base", base)
    write_checkpoint(tmp_path / "agent", odd_agent(base, 0.3))
    pack(tmp_path / "base", tmp_path / "agent", tmp_path / "one.safetensors")
    monkeypatch.setattr(packing, "GROUP", 1000)
    monkeypatch.setattr("agentmerge.deltas.blocks.SIZE", 1)
    pack(tmp_path / "base", tmp_path / "agent", tmp_path / "many.safetensors")
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "many.safetensors").read_bytes()


def test_another_materialize_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="materialize: 'nonsense', expected 'base_dtype' or 'exact'"):
        pack("base", "agent", tmp_path / "d", materialize="nonsense")  # type: ignore[arg-type]
