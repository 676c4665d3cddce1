"""What torch itself leaves in parts, on one, two and four processes, is read as the whole that it was."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge.errors import BASE, Role
from agentmerge.sources.opening import opened
from agentmerge.tensors import Block
from agentmerge.testing import assert_source_contract

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentmerge.sources.source import Source

pytestmark = pytest.mark.slow


def made() -> Any:
    """A model whose rows divide by neither two nor four, with a buffer and a frozen float16 matrix."""
    from torch import arange, float16, manual_seed, nn

    manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 7, bias=False), nn.Linear(7, 1))
    model.register_buffer("position", arange(4))
    model[2].to(float16)
    return model


def train(rank: int, world: int, out: str) -> None:
    """One process: every kind of parts that torch leaves of the model, each in a folder of its own."""
    import torch
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/meet", rank=rank, world_size=world)
    flat = init_device_mesh("cpu", (world,), mesh_dim_names=("fsdp",))

    def save(kind: str, state: Mapping[str, Any]) -> None:
        folder = Path(out) / kind
        folder.mkdir(exist_ok=True)
        torch.save(dict(state), folder / f"model_world_size_{world}_rank_{rank}.pt")

    save("fsdp2", divided(flat).state_dict())
    for kind, mesh in (("fsdp1", flat), ("fsdp1_without_mesh", None)):
        save(kind, wrapped(mesh))
    whole = {name: tensor for name, tensor in made().state_dict().items() if tensor.ndim == 2}
    save("columns", {name: distribute_tensor(tensor, flat, [Shard(1)]) for name, tensor in whole.items()})
    if world == 4:
        square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("ddp", "fsdp"))
        save("hsdp", divided(square).state_dict())
        both = {name: distribute_tensor(tensor, square, [Shard(1), Shard(0)]) for name, tensor in whole.items()}
        save("both", both)
        save("inner", {name: distribute_tensor(tensor, square["fsdp"], [Shard(0)]) for name, tensor in whole.items()})
        copies = {name: distribute_tensor(tensor, square, [Replicate(), Replicate()]) for name, tensor in whole.items()}
        save("copies", copies)
    checkpoint(flat, Path(out))
    dist.destroy_process_group()


def divided(mesh: Any) -> Any:
    """By FSDP2."""
    from torch.distributed.fsdp import fully_shard

    model = made()
    fully_shard(model[2], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def wrapped(mesh: Any) -> Mapping[str, Any]:
    """The state of FSDP1, as verl asks for it."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardedStateDictConfig, StateDictType

    model = made()
    how = {"device_id": torch.device("cpu"), "use_orig_params": True, "device_mesh": mesh}
    model[2] = FullyShardedDataParallel(model[2], **how)
    model = FullyShardedDataParallel(model, **how)
    settings = ShardedStateDictConfig(offload_to_cpu=False)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, settings):
        state: Mapping[str, Any] = model.state_dict()
    return state


def checkpoint(mesh: Any, out: Path) -> None:
    """A distributed checkpoint after a step of training, nested as trainers do, and its whole."""
    import torch
    from torch.distributed.checkpoint import save
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    model = divided(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    save({"app": {"model": weights, "optim": moments, "step": 3}}, checkpoint_id=out / "nested")
    save(weights, checkpoint_id=out / "flat")
    full, _ = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))
    if torch.distributed.get_rank() == 0:
        torch.save(full, out / "whole.pt")


def assert_is(source: Source, expected: Mapping[str, Any]) -> None:
    import torch

    assert_source_contract(source)
    assert source.specs.keys() == expected.keys()
    for name, spec in source.specs.items():
        assert spec.shape == tuple(expected[name].shape)
        whole = source.weights.read(Block(spec, 0, spec.elements))
        bits = expected[name].detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        np.testing.assert_array_equal(whole.view(np.uint8), bits, name)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_parts_of_every_process_are_the_model(tmp_path: Path, world: int) -> None:
    torch = pytest.importorskip("torch")
    torch.multiprocessing.spawn(train, (world, str(tmp_path)), nprocs=world)
    model = made().state_dict()
    matrices = {name: tensor for name, tensor in model.items() if tensor.ndim == 2}
    kinds = {"fsdp2": model, "fsdp1": model, "fsdp1_without_mesh": model, "columns": matrices}
    if world == 4:
        kinds |= {"hsdp": model, "both": matrices, "inner": matrices, "copies": matrices}
    for kind, expected in kinds.items():
        with opened(None, str(tmp_path / kind)) as source:
            assert_is(source, expected)
    trained = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert not torch.equal(trained["0.weight"], model["0.weight"])
    for kind in ("nested", "flat"):
        with opened(None, str(tmp_path / kind)) as source:
            assert_is(source, trained)


def test_what_is_read_in_the_bases_dtype_is_what_torch_casts(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    numbers = torch.cat([torch.randn(5000), torch.randn(5000) * 1e-39, torch.tensor([0.0, -0.0, 1.00390625, 3.3e38])])
    torch.save({"w": numbers}, tmp_path / "model_world_size_1_rank_0.pt")
    (tmp_path / "base").mkdir()
    for dtype in (torch.bfloat16, torch.float32):
        save_file({"w": torch.zeros_like(numbers, dtype=dtype)}, tmp_path / "base" / "base.safetensors")
        with (
            opened(BASE, str(tmp_path / "base" / "base.safetensors")) as base,
            opened(Role("code"), str(tmp_path), base) as source,
        ):
            assert_is(source, {"w": numbers.to(dtype)})
