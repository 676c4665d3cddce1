"""One agent: on-policy GRPO on one domain, through TRL. Float32 weights in training, bfloat16 on disk."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from files import read_model, save_checkpoint
from transformers import logging
from trl import GRPOConfig, GRPOTrainer

from agentmerge.eval.samples import Sample, split_of
from agentmerge.eval.tiny.domains.domain import LEVELS
from agentmerge.eval.tiny.tasks import DOMAINS, SubTask

if TYPE_CHECKING:
    from pathlib import Path

    from settings import AgentSettings

LONGEST_ANSWER = {"code": 30, "math": 6, "memory": 6, "tool": 26}


def train_agent(base: Path, out: Path, domain: str, settings: AgentSettings, seed: int) -> list[dict[str, float]]:
    """Train, save to `out`, and return what was logged at every step."""
    logging.disable_progress_bar()
    model, tokenizer = read_model(base)
    config = GRPOConfig(
        output_dir=str(out.with_suffix(".trl")),
        per_device_train_batch_size=settings.prompts * settings.group,
        num_generations=settings.group,
        max_completion_length=LONGEST_ANSWER[domain],
        max_steps=settings.steps,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=settings.warmup,
        adam_epsilon=settings.epsilon,
        weight_decay=0.0,
        max_grad_norm=1.0,
        temperature=settings.temperature,
        beta=0.0,
        num_iterations=1,
        scale_rewards="group",
        loss_type="grpo",
        bf16=False,
        use_cpu=not torch.cuda.is_available(),
        gradient_checkpointing=False,
        shuffle_dataset=False,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=seed,
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=rewards,
        args=config,
        train_dataset=prompts(domain, settings.steps * settings.prompts, seed),
    )
    trainer.train()
    save_checkpoint(trainer.model, tokenizer, out)
    wanted = ("reward", "reward_std", "grad_norm", "entropy", "completions/mean_length", "step_time")
    history = [entry for entry in trainer.state.log_history if "reward" in entry]
    return [{"step": e["step"], **{key: float(e[key]) for key in wanted if key in e}} for e in history]


def prompts(domain: str, count: int, seed: int) -> Dataset:
    """Training prompts, easy and hard in turn."""
    rng = random.Random(f"{domain} {seed}")
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        level = LEVELS[len(rows) % 2]
        sample = DOMAINS[domain].make(rng, level, "train")
        if split_of(sample.prompt) == "train":
            rows.append({"prompt": sample.prompt, "answer": sample.answer, "domain": domain, "level": level})
    return Dataset.from_list(rows)


def rewards(prompts: list[str], completions: list[str], completion_ids: list[list[int]], **columns: Any) -> list[float]:
    """The demo's own reward; an answer without its end token is unfinished."""
    facts = (columns[key] for key in ("answer", "domain", "level"))
    rows = zip(prompts, completions, completion_ids, *facts, strict=True)
    return [
        SubTask(domain, level).reward(Sample(prompt, answer), text, finished=1 in ids)
        for prompt, text, ids, answer, domain, level in rows
    ]
