"""What torch itself saves is read as torch itself loads it."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentmerge.sources.opening import opened
from agentmerge.tensors import Block
from agentmerge.testing import assert_source_contract, read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_files_of_torch_save_are_what_torch_loads(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    matrix = torch.randn(37, 53)
    kinds = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
    kinds += [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool]
    tensors = {str(kind): matrix.to(kind) for kind in kinds}
    tensors |= {"turned": matrix.t(), "part": matrix[3:9, 5:], "again": matrix, "scalar": torch.tensor(2.5)}
    tensors |= {"parameter": torch.nn.Parameter(matrix), "tied": torch.nn.Parameter(matrix), "empty": torch.zeros(0, 3)}
    state = OrderedDict(tensors)
    state._metadata = {"": {"version": 1}}  # as nn.Module.state_dict leaves it
    torch.save(state, tmp_path / "pytorch_model.bin")
    loaded = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    with opened(None, str(tmp_path)) as source:
        assert_source_contract(source)
        assert source.specs.keys() == loaded.keys()
        for name, tensor in loaded.items():
            spec = source.specs[name]
            assert spec.shape == tuple(tensor.shape)
            found = source.weights.read(Block(spec, 0, spec.elements))
            expected = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            np.testing.assert_array_equal(found.view(np.uint8), expected, name)


def test_a_module_saved_whole_and_a_legacy_file_are_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save(torch.nn.Linear(2, 2), tmp_path / "a.bin")
    torch.save({"a": torch.ones(2)}, tmp_path / "b.bin", _use_new_zipfile_serialization=False)
    for name, message in (("a.bin", "its pickle is refused"), ("b.bin", "from before torch 1.6")):
        with pytest.raises(Exception, match=message), opened(None, str(tmp_path / name)):
            pass


def test_an_adapter_that_torch_saved_is_one_that_safetensors_saved(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    from agentmerge.errors import BASE, Role

    save_file({"up.weight": torch.randn(8, 6)}, tmp_path / "base.safetensors")
    matrices = {"base_model.model.up.lora_A.weight": torch.randn(6, 2).t(), "base_model.model.up.lora_B.weight":
                torch.randn(8, 2)}  # fmt: skip
    for kind in ("bin", "safetensors"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
    torch.save(matrices, tmp_path / "bin" / "adapter_model.bin")
    whole = {name: tensor.contiguous() for name, tensor in matrices.items()}
    save_file(whole, tmp_path / "safetensors" / "adapter_model.safetensors")
    found = []
    with opened(BASE, str(tmp_path / "base.safetensors")) as base:
        for kind in ("bin", "safetensors"):
            with opened(Role("code"), str(tmp_path / kind), base) as source:
                assert_source_contract(source)
                found.append(source.weights.read(Block(source.specs["up.weight"], 0, 48)))
    assert (
        found[0].tobytes()
        == found[1].tobytes()
        != read_checkpoint(tmp_path / "base.safetensors")["up.weight"].tobytes()
    )
