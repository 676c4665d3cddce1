"""Sparse deltas as RL stacks write them: over a base, in chains, and what no chain is."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge.errors import BASE, Role, SourceError
from agentmerge.files.save import save_file, spec_of
from agentmerge.sources.opening import opened
from agentmerge.tensors import DTYPES, Block
from agentmerge.testing import (
    assert_same_tensors,
    assert_source_contract,
    make_agents,
    read_checkpoint,
    write_checkpoint,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from agentmerge.sources.source import Source
    from agentmerge.tensors import Array

UP, EMBED = "model.layers.0.mlp.up_proj.weight", "model.embed_tokens.weight"


def changes(before: Mapping[str, Array], after: Mapping[str, Array]) -> dict[str, Array]:
    """What differs in bits, as TRL writes it."""
    found = {}
    for name, array in after.items():
        bits = f"u{array.itemsize}"
        (indices,) = np.nonzero(before[name].reshape(-1).view(bits) != array.reshape(-1).view(bits))
        found[f"{name}.indices"] = indices.astype(np.int32)
        found[f"{name}.values"] = array.reshape(-1)[indices]
    return found


def put_delta(path: Path, tensors: Mapping[str, Array], version: int | None = None, **metadata: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    says = {"sparse": "true", **metadata} | ({} if version is None else {"model_version": str(version)})
    save_file(path, [spec_of(name, array) for name, array in tensors.items()], tensors.items(), says)
    return path


@contextmanager
def over(base: Path, agent: Path) -> Iterator[Source]:
    with opened(BASE, str(base)) as below, opened(Role("code"), str(agent), below) as source:
        yield source


def whole(source: Source) -> dict[str, Array]:
    return {
        name: source.weights.read(Block(spec, 0, spec.elements)).reshape(spec.shape)
        for name, spec in source.specs.items()
    }


def refusal(base: Path, agent: Path, read: str = "") -> str:
    with pytest.raises(SourceError) as caught, over(base, agent) as source:
        source.weights.read(Block(source.specs[read], 0, source.specs[read].elements))
    return str(caught.value)


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_a_delta_is_the_agent_that_it_was_made_from(tmp_path: Path, dtype: str) -> None:
    numbers = {name: array.astype(DTYPES[dtype]) for name, array in read_checkpoint(make_agents(tmp_path).base).items()}
    made = make_agents(tmp_path / "in", base=numbers)
    for name, path in made.agents.items():
        agent = read_checkpoint(path)
        file = put_delta(tmp_path / f"{name}.safetensors", changes(numbers, agent), 1)
        with over(made.base, file) as source:
            assert_source_contract(source)
            assert_same_tensors(whole(source), agent)
            assert source.notes == ()


def test_a_chain_lies_over_its_anchor_and_the_last_step_is_on_top(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in")
    states = [read_checkpoint(made.base), *(read_checkpoint(path) for path in made.agents.values())]
    for i, name in enumerate(("c", "b", "a"), 1):  # the order is that of the versions, not of the names
        tensors = changes(states[i - 1], states[i])
        put_delta(tmp_path / "base-chain" / f"{name}.safetensors", tensors, i)
        put_delta(tmp_path / "chain" / f"{name}.safetensors", tensors, i + 20)
    with over(made.base, tmp_path / "base-chain") as source:
        assert_same_tensors(whole(source), states[3])
    assert "version 21 lies over version 20, and what is there is version 0" in refusal(made.base, tmp_path / "chain")
    anchor = states[0]
    save_file(
        tmp_path / "chain" / "anchor.safetensors",
        [spec_of(name, array) for name, array in anchor.items()],
        anchor.items(),
        {"model_version": "20"},
    )
    with opened(None, str(tmp_path / "chain")) as source:  # it needs no base
        assert_source_contract(source)
        assert_same_tensors(whole(source), states[3])
        assert len(source.identity.files) == 4
    (tmp_path / "chain" / "b.safetensors").unlink()
    text = refusal(made.base, tmp_path / "chain")
    assert "a.safetensors: version 23 lies over version 22, and what is there is version 21" in text
    assert "Fetch every step" in text


def test_a_step_may_say_what_it_lies_over(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in")
    base, agent = read_checkpoint(made.base), read_checkpoint(made.agents["code"])
    put_delta(tmp_path / "d" / "run.safetensors", changes(base, agent), 500, base_step="0")
    with over(made.base, tmp_path / "d") as source:
        assert_same_tensors(whole(source), agent)
    put_delta(tmp_path / "d" / "run.safetensors", changes(base, agent), 500, base_step="490")
    assert "version 500 lies over version 490" in refusal(made.base, tmp_path / "d")


def test_another_base_is_told_where_the_metadata_tells_it(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in")
    tensors = changes(read_checkpoint(made.base), read_checkpoint(made.agents["code"]))
    for metadata, message in (
        ({}, "does not say what it lies over"),
        ({"base_model": "org/other"}, "was made from org/other, and the base is"),
        ({"base_model": "org/base"}, ""),
    ):
        with over(made.base, put_delta(tmp_path / "d.safetensors", tensors, **metadata)) as source:
            assert len(source.notes) == bool(message)
            assert message in "".join(map(str, source.notes))


def test_tensors_that_a_delta_leaves_out_are_the_base_and_names_may_have_a_prefix(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in")
    tensors = {
        f"module.{UP}.indices": np.array([0, 4, 8776], np.int32),
        f"module.{UP}.values": np.ones(3, DTYPES["BF16"]),
    }
    with over(made.base, put_delta(tmp_path / "d.safetensors", tensors, 1)) as source:
        expected = read_checkpoint(made.base)
        expected[UP].reshape(-1)[[0, 4, 8776]] = 1
        assert_same_tensors(whole(source), expected)
    with over(made.base, put_delta(tmp_path / "none.safetensors", {}, 1)) as source:
        assert_same_tensors(whole(source), read_checkpoint(made.base))


def test_a_block_reads_only_the_indices_that_it_needs(tmp_path: Path) -> None:
    size = 1 << 18
    base = {"w": np.zeros(size, np.float32)}
    write_checkpoint(tmp_path / "base", base)
    indices = np.arange(0, size, 2, dtype=np.int32)
    tensors = {"w.indices": indices, "w.values": indices.astype(np.float32)}
    with over(tmp_path / "base", put_delta(tmp_path / "d.safetensors", tensors, 1)) as source:
        assert_source_contract(source)
        (step,) = source.weights._steps["w"]  # type: ignore[attr-defined]
        counted, inner = [], step.weights.read
        step.weights.read = lambda block, out=None: counted.append(block.elements) or inner(block, out)
        found = source.weights.read(Block(source.specs["w"], 100_000, 104_096))
        assert (found[::2] == np.arange(100_000, 104_096, 2)).all()
        assert (found[1::2] == 0).all()
        assert sum(counted) < 2 * 2048 + 2 * 600


def pair(indices: Any, values: int | None = None, dtype: str = "BF16", kind: type = np.int32) -> dict[str, Array]:
    array = np.array(indices, kind)
    return {f"{UP}.indices": array, f"{UP}.values": np.ones(array.size if values is None else values, DTYPES[dtype])}


BROKEN: dict[str, tuple[dict[str, Array], str]] = {
    "unsorted": (pair([3, 1]), "does not increase, or leaves its tensor"),
    "twice": (pair([3, 3]), "does not increase, or leaves its tensor"),
    "negative": (pair([-1, 3]), "does not increase, or leaves its tensor"),
    "beyond": (pair([3, 67 * 131]), "does not increase, or leaves its tensor"),
    "more indices than elements": (pair(np.arange(67 * 131 + 1)), "8778 I32 indices into 8777 elements"),
    "another number of values": (pair([1, 2], 3), "are I32 [2] with values [3]"),
    "another dtype": (pair([1], dtype="F32"), "are F32, expected BF16"),
    "floats": (pair([1], kind=np.float32), "are F32 [1]"),
    "no values": ({f"{UP}.indices": np.array([1], np.int32)}, "has no values"),
    "no indices": ({f"{UP}.values": np.ones(1, DTYPES["BF16"])}, "has no indices"),
    "a whole tensor": ({**pair([1]), EMBED: np.ones((97, 53), DTYPES["BF16"])}, "neither indices nor values"),
    "another tensor": (
        {"x.indices": np.array([1], np.int32), "x.values": np.ones(1, DTYPES["BF16"])},
        "'x' is none of",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_does_not_fit_is_refused_with_file_and_tensor(tmp_path: Path, what: str) -> None:
    tensors, message = BROKEN[what]
    text = refusal(make_agents(tmp_path / "in").base, put_delta(tmp_path / "d.safetensors", tensors, 1), UP)
    assert text.startswith(f"{tmp_path / 'd.safetensors'}: ")
    assert message in text


def test_every_part_of_an_unsorted_delta_is_found_by_some_block(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    base = make_agents(tmp_path / "in").base
    for _ in range(20):
        indices = np.sort(rng.choice(67 * 131, 3000, replace=False)).astype(np.int32)
        at = rng.integers(0, 3000, 2)
        if at[0] == at[1]:
            continue
        indices[at] = indices[at[::-1]]
        file = put_delta(tmp_path / "d.safetensors", pair(indices), 1)
        with over(base, file) as source:
            blocks = [Block(source.specs[UP], low, min(low + 1000, 67 * 131)) for low in range(0, 67 * 131, 1000)]
            with pytest.raises(SourceError, match="does not increase"):
                list(map(source.weights.read, blocks))


def test_deltas_alone_are_no_base(tmp_path: Path) -> None:
    file = put_delta(tmp_path / "d.safetensors", pair([1]), 1)
    with pytest.raises(SourceError, match="found only deltas"), opened(BASE, str(file)):
        pass


def test_deltas_beside_an_anchor_that_is_not_read_are_refused(tmp_path: Path) -> None:
    file = put_delta(tmp_path / "d" / "one.safetensors", pair([1]), 1)
    (tmp_path / "d" / "pytorch_model.bin").touch()
    assert "beside pytorch_model.bin, expected safetensors" in refusal(make_agents(tmp_path / "in").base, file.parent)
