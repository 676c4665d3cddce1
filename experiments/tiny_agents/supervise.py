"""Supervised training: the base on a mixture of all sub-tasks, and one agent for contrast."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch
from files import read_model, save_checkpoint
from model import build_model, build_tokenizer
from torch.nn.functional import cross_entropy

from agentmerge.eval.generate import LanguageModel
from agentmerge.eval.samples import Sample, split_of
from agentmerge.eval.score import score
from agentmerge.eval.tiny.domains.memory import LETTERS
from agentmerge.eval.tiny.tasks import DOMAINS, SUB_TASKS, SubTask

Batch = tuple[torch.Tensor, torch.Tensor]
"""Token ids and labels, [samples, tokens]."""
LONGEST_RECALL = 5

if TYPE_CHECKING:
    from pathlib import Path

    from settings import BaseSettings, SupervisedSettings


def train_base(out: Path, settings: BaseSettings, seed: int) -> list[dict[str, Any]]:
    """Train from nothing, save to `out`, and return the scores on the way."""
    tokenizer, model, rng = build_tokenizer(), build_model(seed), random.Random(seed)
    learn_recall(tokenizer, model, rng, settings)
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    muon = torch.optim.Muon(matrices, lr=0.0, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    optimizers = [muon, torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)]
    shares, history = mixture({}, settings), []
    for step in range(1, settings.steps + 1):
        rest = max(settings.last_rate, 3 * (1 - (step - 1) / settings.steps))
        rate = settings.learning_rate * min(step / settings.warmup, 1, rest)
        batches = [encoded(tokenizer, drawn) for drawn in draw(rng, shares, settings.batch)]
        train_step(model, optimizers, rate, [*batches, recall(tokenizer, rng, settings.recall_kept, LONGEST_RECALL)])
        if step % settings.every == 0:
            scores = looked_at(LanguageModel(model.eval(), tokenizer), settings.look, seed)
            shares = mixture(scores, settings)
            history.append({"step": step, **{str(task): value for task, value in scores.items()}})
            print(f"base {seed}", {key: round(value, 2) for key, value in history[-1].items()}, flush=True)
    save_checkpoint(model, tokenizer, out)
    return history


def learn_recall(tokenizer: Any, model: Any, rng: random.Random, settings: BaseSettings) -> None:
    """Learn to look values up by their keys: among two, then three, up to LONGEST_RECALL."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)
    pairs, loss = 2, 3.0
    for step in range(1, settings.recall_most + 1):
        rate = settings.recall_rate * min(step / settings.warmup, 1)
        now = train_step(model, [optimizer], rate, [recall(tokenizer, rng, settings.recall_batch, pairs)])
        loss += 0.05 * (now - loss)
        if loss < settings.recall_loss:
            print(f"recall of {pairs} learned at step {step}", flush=True)
            pairs, loss = pairs + 1, 1.0
        if pairs > LONGEST_RECALL:
            return


def train_supervised(base: Path, out: Path, settings: SupervisedSettings, seed: int) -> list[dict[str, Any]]:
    """Supervised training on the right answers of one domain, from the base."""
    (model, tokenizer), rng = read_model(base), random.Random(seed)
    shares = {task: 0.5 for task in SUB_TASKS if task.domain == settings.domain}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.0)
    history = []
    for step in range(1, settings.steps + 1):
        rate = settings.learning_rate * min(step / 5, 1)
        batches = [encoded(tokenizer, samples) for samples in draw(rng, shares, settings.batch)]
        loss = train_step(model, [optimizer], rate, batches)
        history.append({"step": step, "loss": loss})
    save_checkpoint(model, tokenizer, out)
    return history


def looked_at(model: LanguageModel, count: int, seed: int) -> dict[SubTask, float]:
    """Share of right answers on dev, by sub-task."""
    found = score(model, SUB_TASKS, "dev", count, seed=seed)
    return {task: found.share(task) for task in SUB_TASKS}


def mixture(scores: dict[SubTask, float], settings: BaseSettings) -> dict[SubTask, float]:
    """How much of a batch each sub-task gets: more the further it is from the aim; hard ones follow the easy ones."""
    parts = {}
    for task in SUB_TASKS:
        easy = scores.get(SubTask(task.domain, "easy"), 0.0)
        part = max(settings.aim - scores.get(task, 0.0), 0.01)
        part *= settings.weights.get(task.domain, 1.0)
        parts[task] = part * (1.0 if task.level == "easy" else min(max(2 * easy, 0.15), 1.0))
    return {task: part / sum(parts.values()) for task, part in parts.items()}


def draw(rng: random.Random, shares: dict[SubTask, float], batch: int) -> list[list[Sample]]:
    """Training samples, one list per domain: prompts of one domain are of like length."""
    drawn: dict[str, list[Sample]] = {}
    for task, share in shares.items():
        own = drawn.setdefault(task.domain, [])
        wanted = len(own) + round(share * batch)
        while len(own) < wanted:
            sample = DOMAINS[task.domain].make(rng, task.level, "train")
            if split_of(sample.prompt) == "train":
                own.append(sample)
    return [samples for samples in drawn.values() if samples]


def train_step(model: Any, optimizers: list[Any], rate: float, batches: list[Batch]) -> float:
    """One step on the mean over samples of the mean loss of an answer's tokens; returns that loss."""
    model.train()
    total, count = 0.0, sum(len(tokens) for tokens, _ in batches)
    for tokens, labels in batches:
        logits = model(input_ids=tokens).logits[:, :-1]
        wanted = labels[:, 1:]
        losses = cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
        loss = (losses.sum(dim=1) / (wanted >= 0).sum(dim=1)).sum() / count
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
    return total


def encoded(tokenizer: Any, samples: list[Sample]) -> Batch:
    """Token ids, padded on the right, and labels: only the answer and its end count."""
    pairs = [(tokenizer(s.prompt)["input_ids"], [*tokenizer(s.answer)["input_ids"], 1]) for s in samples]
    longest = max(len(prompt) + len(answer) for prompt, answer in pairs)
    tokens = torch.zeros(len(pairs), longest, dtype=torch.long)
    labels = torch.full((len(pairs), longest), -100)
    for row, (prompt, answer) in enumerate(pairs):
        stop = len(prompt) + len(answer)
        tokens[row, :stop] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : stop] = torch.tensor(answer)
    return tokens, labels


def recall(tokenizer: Any, rng: random.Random, count: int, pairs: int) -> Batch:
    """Keys with values, and then all of them again in another order: each of the second values can be looked up.

    It is no task of the demo. A model that has learned it needs few prompts to learn `memory` and `tool`.
    """
    rows, labels = [], []
    for _ in range(count):
        keys = rng.sample(LETTERS, pairs)
        shown = {key: f"{key}{rng.randrange(100):02d} " for key in keys}
        first, second = ("".join(shown[key] for key in order) for order in (keys, rng.sample(keys, pairs)))
        row = tokenizer(first + second)["input_ids"]
        known = zip(row[len(first) :], second, strict=True)
        labels.append([-100] * len(first) + [token if character.isdigit() else -100 for token, character in known])
        rows.append(row)
    return torch.tensor(rows), torch.tensor(labels)
