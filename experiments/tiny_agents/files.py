"""Checkpoints of the experiment: float32 in memory, bfloat16 on disk."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

if TYPE_CHECKING:
    from pathlib import Path


def read_model(folder: Path) -> tuple[Any, Any]:
    """Model in float32 and tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder, padding_side="left")


def save_checkpoint(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write an ordinary checkpoint folder; the model's weights are bfloat16 afterwards."""
    model.generation_config = GenerationConfig(
        do_sample=False, max_new_tokens=32, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"  # transformers 5 writes a class that 4 lacks
    config = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    config["model_input_names"] = ["input_ids", "attention_mask"]
    config.pop("backend", None)
    path.write_text(json.dumps(config, indent=2) + "\n")
