"""The cold start: a short supervised mixture after which the base answers some of everything."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from agents import ColdSettings
from files import read_weights, save_checkpoint
from journal import Journal
from model import Model
from scoring import Exam, Tokens, filled, means, prompts
from shapes import END
from tasks import DOMAINS, LEVELS, SUB_TASKS, Sample, draw, levels_of
from trainee import Lesson, Trainee

TOKENS = 12_000  # of one pass backward: nothing else runs beside it
GUARD, GUARD_STREAM = 32, 1000  # prompts of a sub-task that are kept with the base's answers; added to their seed
ENDING = "<|im_end|>"


def train_base(work: Path, seed: int, device: str, settings: ColdSettings, *, tiny: bool = False) -> None:
    """Train until every domain has reached the target or the steps are used up; save the base and what it answers."""
    folder, raw = work / f"seed{seed}", work / "raw"
    torch.manual_seed(seed)
    tokens, weights = Tokens(raw), read_weights(raw, device)
    trainee = Trainee(weights, tokens=TOKENS)
    exam = Exam(trainee.answering, tokens, {t: prompts(tokens, t, "check", seed, settings.look) for t in SUB_TASKS})
    active = list(DOMAINS)
    with Journal(folder / "logs" / "cold.jsonl") as journal:
        for step in range(1, settings.steps + 1):
            rate = settings.learning_rate * min(1.0, step / settings.warmup)
            count, key = settings.batch // len(active), f"cold/{seed}/{step}"
            lessons = [right_answers(tokens, domain, count, key, weights.flat.device) for domain in active]
            loss = cold_step(trainee, lessons, rate)
            scores: dict[str, float] = {}
            if looks(step, settings):
                right = exam.right()
                scores = means(right)
                active = [domain for domain in DOMAINS if scores[domain] < settings.target]
                journal.tell({f"{task} right": float(found.mean()) for task, found in right.items()})
            journal.write({"step": step, "loss": loss, "scores": scores, "active": active})
            if not active:
                break
        if active:
            journal.tell({"still below the target": active})
    write_guard(folder / "prompts.jsonl", trainee.answering, tokens, seed, 1 if tiny else GUARD)
    save_checkpoint(weights, raw, folder / "base")


def looks(step: int, settings: ColdSettings) -> bool:
    """Whether the base is examined after this step; always after the last."""
    due = step >= settings.first_look and (step - settings.first_look) % settings.every == 0
    return due or step == settings.steps


def drawn(tokens: Tokens, domain: str, count: int, key: str) -> tuple[list[Sample], list[list[int]]]:
    """Training samples, easy and hard in turn, and the tokens of their prompts."""
    samples: list[Sample] = []
    rows: list[list[int]] = []
    number = 0
    while len(samples) < max(count, 1):
        sample = draw(domain, LEVELS[len(samples) % len(LEVELS)], "train", f"{key}/{number}")
        row = tokens.encode([sample.prompt])[0]
        if len(row) <= DOMAINS[domain].room:
            samples.append(sample)
            rows.append(row)
        number += 1
    return samples, rows


def cold_step(trainee: Trainee, lessons: list[Lesson], rate: float) -> float:
    """One step on the mean over domains of the mean loss of an answer's token; returns that loss."""
    total = 0.0
    for lesson in lessons:
        total -= trainee.gather(lesson, float(lesson.sizes.sum()) * len(lessons))
    trainee.step(rate)
    return total


def right_answers(tokens: Tokens, domain: str, count: int, key: str, device: torch.device) -> Lesson:
    """Prompts with their right answers."""
    task, (samples, rows) = DOMAINS[domain], drawn(tokens, domain, count, key)
    spelled = tokens.encode([task.spell(sample.answer) for sample in samples])
    answers, sizes = filled([[*row[: task.length - 1], END] for row in spelled], task.length, device)
    questions, lengths = filled(rows, task.room, device)
    ones = torch.ones(len(samples), 1, device=device)
    return Lesson(questions, lengths, answers[:, None], sizes[:, None], ones)


def write_guard(path: Path, model: Model, tokens: Tokens, seed: int, count: int) -> None:
    """Prompts of all sub-tasks with what the base answers greedily."""
    fresh = path.with_name(f".{path.name}")
    lines = (json.dumps(one) + "\n" for one in answered(model, tokens, seed, count, list(DOMAINS)))
    fresh.write_text("".join(lines), encoding="utf-8")
    fresh.replace(path)


def answered(model: Model, tokens: Tokens, seed: int, count: int, domains: list[str]) -> list[dict[str, str]]:
    """Prompts of a stream of their own, `count` of a sub-task, with what a model answers greedily."""
    asked = [task for domain in domains for task in levels_of(domain)]
    samples = {task: prompts(tokens, task, "check", seed + GUARD_STREAM, count) for task in asked}
    exam, found = Exam(model, tokens, samples), []
    for domain in domains:
        texts, sizes = exam.answers(domain)
        ends = [ENDING if size <= DOMAINS[domain].length else "" for size in sizes]
        questions = [(task, sample.prompt) for task in levels_of(domain) for sample in samples[task]]
        for (task, prompt), text, end in zip(questions, texts, ends, strict=True):
            found.append({"prompt": prompt, "response": text + end, "task": task})
    return found
