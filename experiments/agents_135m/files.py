"""Checkpoint folders: read into one flat tensor, written atomically."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
from model import Weights
from safetensors import safe_open
from safetensors.torch import save_file
from shapes import Shape, shape_of

SIDEFILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def read_shape(folder: Path) -> Shape:
    """From config.json."""
    return shape_of(json.loads((folder / "config.json").read_text()))


def read_weights(folder: Path, device: str) -> Weights:
    """All tensors, in the dtype of the file."""
    weights = Weights.empty(read_shape(folder), dtype_of(folder), device)
    copy_weights(folder, weights)
    return weights


def dtype_of(folder: Path) -> torch.dtype:
    """That of its first tensor: merges have one dtype."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                return {"BF16": torch.bfloat16, "F32": torch.float32}[file.get_slice(name).get_dtype()]
    raise SystemExit(f"{folder}: no safetensors file in it")


def copy_weights(folder: Path, weights: Weights) -> None:
    """Into tensors that are there already; raises KeyError if one is missing in the folder."""
    missing = set(weights.views)
    device = weights.flat.device
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt", device=str(device)) as file:
            for name in file.keys():  # noqa: SIM118
                if name in weights.views:  # a head that repeats the embeddings is read with them
                    weights.views[name].copy_(file.get_tensor(name))
                    missing.discard(name)
    if missing:
        raise KeyError(f"{folder}: {len(missing)} tensors are missing, {min(missing)} among them")


def save_checkpoint(weights: Weights, like: Path, out: Path) -> None:
    """Write a folder with the sidefiles of `like`; it appears under its name when it is whole."""
    fresh = out.with_name(f".{out.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    for name in SIDEFILES:
        shutil.copyfile(like / name, fresh / name)
    flat = weights.flat.detach().to("cpu", torch.bfloat16)
    save_weights(Weights.over(weights.shape, flat).views, fresh)
    shutil.rmtree(out, ignore_errors=True)
    fresh.rename(out)


def save_weights(weights: dict[str, torch.Tensor], folder: Path) -> None:
    """One safetensors file."""
    fresh = folder / "model.safetensors.part"
    save_file({name: value.contiguous() for name, value in weights.items()}, fresh, {"format": "pt"})
    fresh.rename(folder / "model.safetensors")
