"""An adapter packed as it is read exact: the sum in float32, in a merge and applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import apply, merge, pack
from agentmerge.deltas.look import look
from agentmerge.testing import assert_same_tensors, random_base, read_checkpoint, write_checkpoint
from tests.sources.adapters import lora, matrices, put_adapter, summed

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.sources.adapter import Materialize

Q, UP = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj"
SHAPES = {f"{Q}.weight": (67, 64), f"{UP}.weight": (131, 64)}
A, B = matrices(1, 67, 64, 4)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """DIR/base in bfloat16, DIR/lora over it, and DIR/whole, another agent."""
    base = random_base(0, SHAPES, dict.fromkeys(SHAPES, "BF16"))
    write_checkpoint(tmp_path / "base", base)
    other = {name: (array.astype(np.float32) * 1.5).astype(array.dtype) for name, array in base.items()}
    write_checkpoint(tmp_path / "whole", other)
    put_adapter(tmp_path / "lora", lora(Q, A, B))
    return tmp_path


def merged(folder: Path, name: str, lora: Any) -> dict[str, Any]:
    agents = {"x": lora, "y": str(folder / "whole")}
    recipe = {"base": str(folder / "base"), "agents": agents, "method": "linear", "output": {"dtype": "float32"}}
    merge(recipe, folder / name)
    return read_checkpoint(folder / name)


@pytest.mark.parametrize("way", ["base_dtype", "exact"])
def test_packed_it_merges_as_it_does_itself(made: Path, way: Materialize) -> None:
    pack(made / "base", made / "lora", made / "d.safetensors", materialize=way)
    expected = merged(made, "expected", {"source": str(made / "lora"), "materialize": way})
    assert_same_tensors(merged(made, "out", str(made / "d.safetensors")), expected)
    other: Materialize = "exact" if way == "base_dtype" else "base_dtype"
    differs = merged(made, "other", {"source": str(made / "lora"), "materialize": other})
    assert (differs[f"{Q}.weight"] != expected[f"{Q}.weight"]).any()


def test_applied_it_is_the_float32_sum(made: Path) -> None:
    record = pack(made / "base", made / "lora", made / "d.safetensors", materialize="exact")
    assert record.without_base == [f"{Q}.weight"]
    apply(made / "base", made / "d.safetensors", made / "out")
    found, base = read_checkpoint(made / "out"), read_checkpoint(made / "base")
    assert found[f"{Q}.weight"].dtype == np.float32
    np.testing.assert_allclose(found[f"{Q}.weight"], summed(base[f"{Q}.weight"], A, B, 2.0), rtol=1e-5, atol=1e-6)
    forms = {tensor.name: (tensor.form, tensor.dtype) for tensor in look(str(made / "d.safetensors")).tensors}
    assert forms == {f"{Q}.weight": ("whole", "F32"), f"{UP}.weight": ("same", "BF16")}
