"""A LoRA adapter read over its base: the product block by block, by its definition in float64."""

from __future__ import annotations

import json
import random
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import kernels
from agentmerge.errors import BASE, Role, SourceError
from agentmerge.sources import lowrank
from agentmerge.sources.adapter_config import adapter_config
from agentmerge.sources.opening import opened
from agentmerge.sources.together import read_blocks
from agentmerge.tensors import DTYPES, Block
from agentmerge.testing import assert_source_contract, random_base, write_checkpoint
from tests.sources.adapters import PEFT, embedded, lora, matrices, put_adapter, summed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentmerge.sources.source import Source
    from agentmerge.tensors import Array

EMBED, HEAD = "model.embed_tokens", "lm_head"
UP, DOWN, Q = "model.layers.0.mlp.up_proj", "model.layers.1.mlp.down_proj", "model.layers.0.self_attn.q_proj"
SHAPES = {
    f"{EMBED}.weight": (97, 53),
    f"{UP}.weight": (67, 131),
    f"{DOWN}.weight": (131, 67),
    f"{Q}.weight": (64, 64),
    f"{Q}.bias": (64,),
    f"{HEAD}.weight": (97, 53),
}


@contextmanager
def agent(
    folder: Path, tensors: Mapping[str, Array], *, dtype: str = "BF16", materialize: Any = "exact", **config: Any
) -> Iterator[tuple[dict[str, Array], Source]]:
    """The base's tensors, and an adapter over them."""
    base = random_base(0, SHAPES, dict.fromkeys(SHAPES, dtype))
    write_checkpoint(folder / "base", base)
    put_adapter(folder / "code", tensors, **config)
    with (
        opened(BASE, str(folder / "base")) as below,
        opened(Role("code"), str(folder / "code"), below, materialize) as source,
    ):
        yield base, source


def whole(source: Source, name: str) -> Array:
    spec = source.specs[name]
    return source.weights.read(Block(spec, 0, spec.elements)).reshape(spec.shape)


def close(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("materialize", ["base_dtype", "exact"])
@pytest.mark.parametrize("dtype", ["BF16", "F32", "F64"])
def test_it_is_the_product_added_to_the_base_and_rounded_once(tmp_path: Path, dtype: str, materialize: str) -> None:
    a, b = matrices(1, 67, 131, 4)
    c, d = matrices(2, 64, 64, 4)
    half = [array.astype(DTYPES["BF16"]) for array in (c, d)]
    with agent(tmp_path, {**lora(UP, a, b), **lora(Q, *half)}, dtype=dtype, materialize=materialize) as (base, source):
        assert_source_contract(source)
        wide = {"BF16": "F32"}.get(dtype, dtype)
        assert source.specs[f"{UP}.weight"].dtype == (dtype if materialize == "base_dtype" else wide)
        for name, (left, right) in {UP: (a, b), Q: half}.items():
            expected = summed(base[f"{name}.weight"], left, right, 2.0)
            found = whole(source, f"{name}.weight")
            if found.dtype != DTYPES["BF16"]:
                close(found, expected)
            else:
                steps = found.view(np.int16).astype(int) - expected.astype(np.float32).astype(found.dtype).view(
                    np.int16
                )
                assert np.abs(steps).max() <= 1
                assert (steps != 0).mean() < 1e-3  # where float32 and float64 sit on two sides of a middle
        for name in (f"{DOWN}.weight", f"{EMBED}.weight", f"{Q}.bias"):
            assert whole(source, name).tobytes() == base[name].tobytes()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize(("rows", "rank", "columns"), [(1, 1, 1), (3, 8, 63), (5, 64, 65), (7, 13, 4097)])
def test_the_compiled_product_is_the_definition_bit_for_bit(rows: int, rank: int, columns: int) -> None:
    rng = np.random.default_rng(rank)
    hostile = np.array([0.0, -0.0, 1e-45, 1e30, -3e38, np.inf, np.nan], np.float32)

    def numbers(*shape: int) -> Array:
        drawn = rng.standard_normal(shape).astype(np.float32)
        return np.where(rng.random(shape) < 0.02, rng.choice(hostile, shape), drawn)

    left, right, scale = numbers(rows, rank), numbers(rank, columns), np.float32(2 / 3)
    with np.errstate(all="ignore"):
        expected = lowrank.product(left, right, scale)
    found = kernels.cpu.low_rank(left, right, float(scale))
    assert found.shape == expected.shape
    finite = ~np.isnan(expected)
    assert (np.isnan(found) == ~finite).all()
    assert found[finite].tobytes() == expected[finite].tobytes()


def test_without_compiled_loops_an_adapter_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = matrices(1, 67, 131, 33)
    with agent(tmp_path, lora(UP, a, b), r=33) as (_, source):
        compiled = whole(source, f"{UP}.weight")
        monkeypatch.setattr(kernels, "choose", lambda *_: None)
        assert whole(source, f"{UP}.weight").tobytes() == compiled.tobytes()


def test_a_block_of_the_base_that_was_just_read_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = matrices(1, 67, 131, 4)
    name = f"{UP}.weight"
    with agent(tmp_path, lora(UP, a, b)) as (base, source):
        expected, part = whole(source, name), source.weights.parts[name]  # type: ignore[attr-defined]
        below, spec = part.under.weights, source.specs[name]
        block, under = Block(spec, 0, spec.elements), Block(part.under.spec, 0, spec.elements)
        into = [np.empty(spec.elements, base[name].dtype), np.empty(spec.elements, expected.dtype)]
        read = type(below).read
        asked: list[str] = []
        monkeypatch.setattr(
            type(below), "read", lambda self, block, out=None: asked.append(block.tensor.name) or read(self, block, out)
        )
        read_blocks([(below, under), (source.weights, block)], into)
        assert into[1].tobytes() == expected.tobytes()
        assert name not in asked


def test_blocks_of_rows_wider_than_a_step_are_the_same(tmp_path: Path) -> None:
    name = "model.layers.0.wide"
    write_checkpoint(tmp_path / "base", random_base(0, {f"{name}.weight": (3, 70_001)}))
    a, b = matrices(1, 3, 70_001, 4)
    put_adapter(tmp_path / "code", lora(name, a, b))
    with opened(BASE, str(tmp_path / "base")) as base, opened(Role("code"), str(tmp_path / "code"), base) as source:
        assert_source_contract(source)


def test_ranks_and_alphas_follow_their_patterns_and_rslora_takes_the_root(tmp_path: Path) -> None:
    a, b = matrices(1, 67, 131, 2)
    c, d = matrices(2, 131, 67, 9)
    patterns = {
        "rank_pattern": {"up_proj": 2, r"layers\.1\..*": 9},
        "alpha_pattern": {"model.layers.1.mlp.down_proj": 5},
    }
    tensors = {**lora(UP, a, b), **lora(DOWN, c, d)}
    for root, scales in ((False, (8 / 2, 5 / 9)), (True, (8 / 2**0.5, 5 / 3))):
        with agent(tmp_path / str(root), tensors, use_rslora=root, **patterns) as (base, source):
            close(whole(source, f"{UP}.weight"), summed(base[f"{UP}.weight"], a, b, scales[0]))
            close(whole(source, f"{DOWN}.weight"), summed(base[f"{DOWN}.weight"], c, d, scales[1]))


def test_fan_in_fan_out_embeddings_and_biases(tmp_path: Path) -> None:
    a, b = matrices(1, 131, 67, 4)  # the base has [in, out]
    c, d = matrices(2, 64, 64, 4)
    e, f = matrices(3, 53, 97, 4)
    bias = np.linspace(-1, 1, 64, dtype=np.float32)
    tensors = {**lora(UP, a, b), **lora(Q, c, d), **embedded(EMBED, e, f), f"{PEFT}{Q}.lora_B.bias": bias}
    with agent(tmp_path, tensors, fan_in_fan_out=True, lora_bias=True, lora_alpha=6) as (base, source):
        assert_source_contract(source)
        for name, (left, right) in {UP: (a, b), Q: (c, d), EMBED: (e, f)}.items():
            expected = summed(base[f"{name}.weight"], left, right, 1.5, turned=True)
            close(whole(source, f"{name}.weight"), expected)
        close(whole(source, f"{Q}.bias"), base[f"{Q}.bias"].astype(np.float64) + 1.5 * bias)


def test_modules_to_save_and_trained_biases_replace_the_base(tmp_path: Path) -> None:
    head = np.full((97, 53), 1.001, np.float32)
    bias = np.full(64, 3.001, np.float32)
    embed = np.full((97, 53), 0.5, np.float32)
    e, f = matrices(3, 53, 97, 4)
    saved = {f"{PEFT}lm_head.modules_to_save.weight": head, f"{PEFT}{Q}.base_layer.bias": bias}
    tensors = {**saved, f"{PEFT}{EMBED}.base_layer.weight": embed, **embedded(EMBED, e, f)}
    for way, number in (("exact", np.float32(1.001)), ("base_dtype", np.float32(1.0))):
        with agent(tmp_path / way, tensors, materialize=way) as (_, source):
            assert_source_contract(source)
            assert (whole(source, "lm_head.weight").astype(np.float32) == number).all()
            assert (whole(source, f"{Q}.bias").astype(np.float32) == np.float32(3.001 if way == "exact" else 3.0)).all()
    with agent(tmp_path, tensors) as (_, source):
        close(whole(source, f"{EMBED}.weight"), summed(embed, e, f, 2.0, turned=True))
        (note,) = [note for note in source.notes if note.severity == "note"]
    assert f"a LoRA adapter on 1 tensors ({EMBED}.weight)" in str(note)
    assert f"it also replaces 2 tensors (lm_head.weight, {Q}.bias)" in str(note)
    assert "100 % with base_dtype, 100 % with exact" in str(note)


def test_names_of_other_generations_are_matched_one_to_one(tmp_path: Path) -> None:
    a, b = matrices(1, 67, 131, 4)
    with agent(tmp_path, lora("model.language_model.layers.0.mlp.up_proj", a, b)) as (base, source):
        close(whole(source, f"{UP}.weight"), summed(base[f"{UP}.weight"], a, b, 2.0))


def test_how_it_is_read_is_part_of_its_identity(tmp_path: Path) -> None:
    tensors = lora(UP, *matrices(1, 67, 131, 4))
    found = []
    for way in ("exact", "base_dtype"):
        with agent(tmp_path, tensors, materialize=way) as (_, source):
            found.append({file.name: file.header_sha256 for file in source.identity.files})
    assert found[0]["adapter_model.safetensors"] == found[1]["adapter_model.safetensors"]
    assert found[0]["adapter_config.json"] != found[1]["adapter_config.json"]


def test_both_densities_are_told(tmp_path: Path) -> None:
    a, b = matrices(1, 67, 131, 4)
    with agent(tmp_path, lora(UP, a, b * np.float32(3e-4))) as (base, source):
        (note,) = [note for note in source.notes if note.severity == "note"]
        exact, weight = whole(source, f"{UP}.weight"), base[f"{UP}.weight"]
    ours = weight.astype(np.float32)
    share, rounded = (
        (np.abs(array.astype(np.float32) - ours) > 1e-5).reshape(-1)[:2048].mean()
        for array in (exact, exact.astype(weight.dtype))
    )
    assert f"{100 * rounded:.2g} % with base_dtype, {100 * share:.2g} % with exact" in str(note)
    assert rounded < 0.6 * share


@pytest.mark.parametrize("role", [BASE, Role("code", "importance"), Role("code")])
def test_without_a_base_it_is_nothing(tmp_path: Path, role: Role) -> None:
    put_adapter(tmp_path, lora(UP, *matrices(1, 67, 131, 4)))
    with pytest.raises(SourceError, match="a base is none") as caught, opened(role, str(tmp_path)):
        pass
    assert "merge_and_unload" in str(caught.value)


def test_thousands_of_damaged_configs_are_read_or_refused() -> None:
    says = {
        "peft_type": "LORA",
        "r": 8,
        "lora_alpha": 16,
        "rank_pattern": {r"0\..*q_proj": 4},
        "alpha_pattern": {"v": 3.5},
    }
    raw, rng, read = json.dumps(says).encode(), random.Random(0), 0
    words = (b"null", b"true", b"0", b"-1", b"1e400", b"NaN", b"[", b"]", b"{}", b'""', b".*", b"(a+)+", b"a?", b"\\")
    for _ in range(4_000):
        content = bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(content))
            content[at : at + rng.randint(0, 3)] = rng.choice((b"", rng.choice(words), rng.randbytes(2)))
        try:
            config = adapter_config(bytes(content), Path("adapter_config.json"))
        except SourceError:
            continue
        assert config.scale_of("model.layers.0.self_attn.q_proj") != 0
        read += 1
    assert 0 < read < 4_000


@pytest.mark.parametrize("pattern", ["(a+)+b", ".*.*.*.*b", "a?" * 30 + "a" * 30, "a**", "[", "[[a]", "a" * 400])
def test_a_pattern_that_may_take_forever_is_refused(pattern: str) -> None:
    raw = json.dumps({"peft_type": "LORA", "rank_pattern": {pattern: 4}}).encode()
    with pytest.raises(SourceError, match="rank_pattern has"):
        adapter_config(raw, Path("adapter_config.json"))
