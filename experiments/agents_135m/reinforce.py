"""One agent: GRPO on one domain, strictly on-policy, without a penalty for leaving the base."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from agents import AgentSettings, DamageSettings
from files import read_weights, save_checkpoint
from generate import Generator
from journal import Journal, write_atomically
from scoring import Exam, Tokens, filled, judged, means, prompts
from supervise import drawn
from tasks import DOMAINS, SUB_TASKS, Sample, Verdict
from trainee import Lesson, Trainee


def train_agent(work: Path, seed: int, name: str, device: str, settings: AgentSettings) -> None:
    """Train from the seed's base; save the agent, and before it its early checkpoints."""
    folder = work / f"seed{seed}"
    torch.manual_seed(seed)
    tokens, weights = Tokens(folder / "base"), read_weights(folder / "base", device)
    trainee, task = Trainee(weights, sparse=settings.sparse), DOMAINS[settings.domain]
    writer = Generator(trainee.answering, settings.prompts, task.room, task.length, group=settings.group, greedy=False)
    damage = Damage(trainee, tokens, seed, settings.domain, settings.damage) if settings.damage else None
    rate = settings.learning_rate
    with Journal(folder / "logs" / f"{name}.jsonl") as journal:
        for step in range(1, settings.steps + 1):
            now = rate * min(1.0, step / settings.warmup)
            record = grpo_step(trainee, writer, tokens, settings, now, f"{seed}/{name}/{step}")
            journal.write({"step": step, **record})
            if step % 20 == 0 or step <= 2:
                journal.tell({"step": step, **record})
            if step in settings.checkpoints and step < settings.steps:
                save_checkpoint(weights, folder / "base", folder / "agents" / f"{name}-{step}")
            if damage and step % damage.settings.every == 0:
                if damage.look(step, rate):
                    break
                rate = damage.next_rate(rate)
    if damage:
        write_atomically(folder / f"{name}.json", damage.found())
    save_checkpoint(weights, folder / "base", folder / "agents" / name)


def grpo_step(
    trainee: Trainee, writer: Generator, tokens: Tokens, settings: AgentSettings, rate: float, key: str
) -> dict[str, Any]:
    """Answer, judge, learn; what is worth knowing of it.

    An answer counts with its reward less the mean of its prompt's answers, over their deviation; prompts whose answers
    all have the same reward teach nothing and are left out. The loss is the mean over all tokens answered.
    """
    started, domain = time.perf_counter(), settings.domain
    samples, rows = drawn(tokens, domain, settings.prompts, key)
    questions, lengths = filled(rows, writer.room, trainee.weights.flat.device)
    answers = writer(questions, lengths)
    texts, ends = tokens.decode(answers)
    written = time.perf_counter()
    verdicts = judged(domain, texts, ends, [sample.answer for sample in samples for _ in range(settings.group)])
    shape = (settings.prompts, settings.group)
    rewards = torch.tensor([v.reward for v in verdicts], device=questions.device).view(shape)
    sizes = torch.tensor(ends, device=questions.device).clamp(max=writer.length).view(shape)
    spread = rewards.std(dim=1, keepdim=True)
    advantages = (rewards - rewards.mean(dim=1, keepdim=True)) / (spread + 1e-4)
    live = spread[:, 0] > 1e-6
    lesson = Lesson(questions, lengths, answers.view(*shape, -1), sizes, advantages)
    total, norm = float(sizes.sum()), 0.0
    if bool(live.any()):
        trainee.gather(Lesson(*(part[live] for part in lesson)), total)
        norm = trainee.step(rate)
    return {
        "reward": float(rewards.mean()),
        **exact_by_level(verdicts, settings.group),
        "tokens": total / len(verdicts),
        "live": float(live.float().mean()),
        "norm": norm,
        "rate": rate,
        "answer_seconds": written - started,
        "learn_seconds": time.perf_counter() - written,
    }


def exact_by_level(verdicts: list[Verdict], group: int) -> dict[str, float]:
    """Share of right answers; prompts are easy and hard in turn."""
    exact = torch.tensor([float(v.exact) for v in verdicts]).view(-1, group)
    return {"easy": float(exact[0::2].mean()), "hard": float(exact[1::2].mean())}


class Damage:
    """Watches the other domains while one is trained too hard.

    Args:
        trainee: the agent as it is now.
        tokens: of its prompts, those of the split `check`.
        seed: of the prompts.
        domain: that is trained.
        settings: when to look and when to call a domain lost.
    """

    def __init__(self, trainee: Trainee, tokens: Tokens, seed: int, domain: str, settings: DamageSettings):
        self.settings, self._domain = settings, domain
        samples: dict[str, list[Sample]] = {t: prompts(tokens, t, "check", seed, settings.look) for t in SUB_TASKS}
        self._exam = Exam(trainee.answering, tokens, samples)
        self._base = means(self._exam.right())
        self._looks: list[dict[str, Any]] = []
        self.broken: str | None = None

    def look(self, step: int, rate: float) -> bool:
        """Whether another domain has lost more than it may."""
        scores = means(self._exam.right())
        self._looks.append({"step": step, "rate": rate, "scores": scores})
        print("damage", self._looks[-1], flush=True)
        left = {
            domain: scores[domain] / before
            for domain, before in self._base.items()
            if domain != self._domain and before >= self.settings.least
        }
        if left and min(left.values()) < self.settings.broken:
            self.broken = min(left, key=left.__getitem__)
        return self.broken is not None

    def next_rate(self, rate: float) -> float:
        """After every second look that finds all alive, the rate grows."""
        if len(self._looks) % 2:
            return rate
        return min(rate * self.settings.growth, self.settings.highest)

    def found(self) -> dict[str, Any]:
        """What was trained, what broke (none: nothing did) and when."""
        last = self._looks[-1] if self._looks else {}
        what = {"domain": self._domain, "broken": self.broken, "step": last.get("step"), "rate": last.get("rate")}
        return what | {"base": self._base, "looks": self._looks}
