"""What trainers write while they train, by the names of its files: parts of a model, and adapters.

Some parts are read as they are (`trained_opening.py`); the others are refused with their cause and their converter,
never with an advice under which the training would be lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentmerge.errors import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

ADAPTERS = re.compile(
    r"^adapter_model(?:[.-].*)?\.(?:safetensors|bin|pt)$|^(?:adapters|pytorch_lora_weights)\.safetensors$"
)
"""The weights of a LoRA adapter; its config is adapter_config.json."""
UNLORA = (
    "Merge it into its base first, the model that it was trained on, for example with PEFT's merge_and_unload and "
    "save_pretrained, and give the folder that this writes."
)
VERL = re.compile(r"^model_world_size_(?P<world>\d+)_rank_(?P<rank>\d+)\.pt$")
BELOW = re.compile(r"actor$|pytorch_model_fsdp_\d+$")
"""A folder of parts below the one that a trainer calls its checkpoint: verl's, Accelerate's."""
MEGATRON = re.compile(r"common\.pt$|metadata\.json$")
"""What lies beside the .distcp files that only Megatron can read."""
RANKS = re.compile(
    r"(?:^|[._-])(?:rank[-_]?\d+|(?:tp|pp|ep|dp|mp)_?(?:rank)?[-_]?\d+|shard[-_]?\d+[-_]of[-_]?\d+[-_]?tp)(?=[._-]|$)"
)
"""In the names of files that hold a part of every tensor, one per process."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What a folder holds instead of a checkpoint."""

    found: str
    """With the files that show it."""
    todo: str


def adapters_of(names: Iterable[str]) -> list[str]:
    """The files that hold an adapter's weights."""
    return [name for name in names if ADAPTERS.match(name)]


def parts_at(folder: Path, names: Iterable[str]) -> Path | None:
    """Where the parts of a model lie that are read as they are: in this folder, or in the one below it; None nowhere.

    Args:
        folder: where.
        names: of everything in it.
    """
    names = list(names)
    if _readable(names):
        return folder
    below = [folder / name for name in names if BELOW.match(name) and _readable(_listed(folder / name))]
    return below[0] if len(below) == 1 else None


def parts_among(names: Iterable[str]) -> list[str]:
    """The files that hold the parts of a model which are read as they are."""
    return [name for name in names if VERL.match(name) or name.endswith(".distcp")]


def _readable(names: list[str]) -> bool:
    return bool(parts_among(names)) and not any(MEGATRON.match(name) for name in names)


def unfinished(folder: Path, names: Iterable[str]) -> Unfinished | None:
    """The state of a trainer that a folder holds; None where it is of no kind that is known here.

    Args:
        folder: where.
        names: of everything in it.
    """
    names = sorted(names)
    for kind in (_verl, _deepspeed, _distributed, _megatron, _ranks, _meta):
        if (found := kind(folder, names)) is not None:
            return found
    return None


def _verl(folder: Path, names: list[str]) -> Unfinished | None:
    parts = [found for name in names if (found := VERL.match(name))]
    if not parts:
        return None
    return Unfinished(
        f"parts of a model that FSDP divided among {int(parts[0]['world'])} processes (verl): "
        f"{shortened(p[0] for p in parts)}",
        f"Give the folder, which is read as a whole: {folder}",
    )


def _deepspeed(folder: Path, names: list[str]) -> Unfinished | None:
    parts = [
        n for n in names if re.match(r"(?:bf16_|fp16_)?zero_pp_rank_|mp_rank_\d+_model_states\.pt$|layer_\d+-model_", n)
    ]
    steps = [
        n for n in names if re.match(r"global_step_?\d+$", n) and _any(folder / n, r"(zero_pp|mp)_rank_\d+.*\.pt$")
    ]
    if not parts and not steps:
        return None
    root = folder if steps else folder.parent
    script = f"{root}/zero_to_fp32.py" if (root / "zero_to_fp32.py").exists() else "zero_to_fp32.py"
    return Unfinished(
        f"the state of DeepSpeed: {shortened(parts or steps)}",
        f"Its weights are put together by the script that DeepSpeed saves beside them: `python {script} {root} DIR "
        "--safe_serialization`; give DIR, with the config and tokenizer of the model.",
    )


def _distributed(folder: Path, names: list[str]) -> Unfinished | None:
    parts = [name for name in names if name.endswith(".distcp")]
    below = [name for name in names if _any(folder / name, r".*\.distcp$")]
    if not parts and not below:
        return None
    where = folder if parts else folder / below[0]
    found = f"a distributed checkpoint of torch: {shortened(parts or [f'{name}/*.distcp' for name in below])}"
    if any(MEGATRON.match(name) for name in names) or _any(where, MEGATRON.pattern):
        return Unfinished(found + ", as Megatron writes it", _megatron_todo(where))
    return Unfinished(found, f"Give the folder, which is read as a whole: {where}")


def _megatron(folder: Path, names: list[str]) -> Unfinished | None:
    parts = [name for name in names if re.match(r"mp_rank_\d+(?:_\d+)*$|model_optim_rng\.pt$", name)]
    steps = [
        n for n in names if re.match(r"iter_\d+$|release$", n) and _any(folder / n, r"mp_rank_|.*\.distcp$|common")
    ]
    if not parts and not steps:
        return None
    where = folder if parts else folder / steps[-1]
    return Unfinished(f"a checkpoint of Megatron: {shortened(parts or steps)}", _megatron_todo(where))


def _megatron_todo(folder: Path) -> str:
    actor = folder.parent if folder.name == "dist_ckpt" else folder  # where verl puts it
    return (
        "Export it with the converter of what trained it: Megatron Bridge's `python "
        f"examples/conversion/convert_checkpoints.py export --hf-model MODEL --megatron-path {folder} --hf-path DIR`, "
        f"or verl's `python -m verl.model_merger merge --backend megatron --local_dir {actor} --target_dir DIR`; give "
        "DIR."
    )


def _ranks(folder: Path, names: list[str]) -> Unfinished | None:
    parts = [n for n in names if n.endswith((".pt", ".pth", ".bin", ".safetensors", ".ckpt")) and RANKS.search(n)]
    parts = [name for name in parts if not re.match(r"rng_state|optim|extra_state|scheduler", name)]
    if not parts:
        return None
    return Unfinished(
        f"parts of a model, one file per process: {shortened(parts)}",
        "Each holds a part of every tensor: put them together with the converter of the trainer that wrote them, save "
        "the whole model with save_pretrained, and give that folder. Look that the files of every process are there.",
    )


def _meta(folder: Path, names: list[str]) -> Unfinished | None:
    parts = [name for name in names if re.match(r"consolidated\.\d+\.pth$", name)]
    if not parts:
        return None
    return Unfinished(
        f"weights in Meta's own format: {shortened(parts)}",
        "Convert them with transformers' convert_llama_weights_to_hf.py, or fetch the model in the format of "
        "transformers.",
    )


def _any(folder: Path, pattern: str) -> bool:
    """Whether a folder holds a name of this pattern."""
    return any(re.match(pattern, name) for name in _listed(folder))


def _listed(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()] if folder.is_dir() else []
    except OSError:
        return []
