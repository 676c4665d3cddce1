"""Greedy answers of a checkpoint to fixed prompts, judged exactly."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from families import model_of
from files import copy_weights, dtype_of, read_shape
from generate import Generator, cache_bytes
from model import Model, Weights
from shapes import END
from tasks import DOMAINS, LEVELS, Sample, Verdict, draw, levels_of
from tokenizers import Tokenizer

COUNTS = {"dev": 256, "test": 512, "check": 64}
"""Prompts of a sub-task."""
TINY_COUNTS = {"dev": 4, "test": 6, "check": 2}


class Tokens:
    """Texts as rows of tokens, and back."""

    def __init__(self, folder: Path):
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [found.ids for found in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, answers: torch.Tensor) -> tuple[list[str], list[int]]:
        """Texts up to their ends, and how many tokens each has, the end included; an open one has length + 1.

        Args:
            answers: [rows, length].
        """
        rows = answers.tolist()
        ends = [row.index(END) if END in row else len(row) for row in rows]
        texts = self._tokenizer.decode_batch(
            [row[:end] for row, end in zip(rows, ends, strict=True)], skip_special_tokens=False
        )
        return texts, [end + 1 for end in ends]

    def fits(self, domain: str, sample: Sample) -> bool:
        """Whether the prompt is no longer than its domain allows."""
        return len(self.encode([sample.prompt])[0]) <= DOMAINS[domain].room


def filled(rows: list[list[int]], room: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows filled up with END to `room` places, [rows, room], and their lengths, [rows]."""
    padded = [row + [END] * (room - len(row)) for row in rows]
    return torch.tensor(padded, device=device), torch.tensor([len(row) for row in rows], device=device)


def judged(domain: str, texts: list[str], sizes: list[int], answers: list[object]) -> list[Verdict]:
    """Verdicts; an answer that does not end gets half of what it would."""
    task, found = DOMAINS[domain], []
    for text, size, answer in zip(texts, sizes, answers, strict=True):
        verdict = task.judge(text, answer)
        found.append(verdict if size <= task.length else Verdict(0.5 * min(verdict.reward, 0.9), False))
    return found


def prompts(tokens: Tokens, task: str, split: str, seed: int, count: int) -> list[Sample]:
    """The fixed prompts of a sub-task, different from each other as far as twenty tries find one."""
    domain, level = task.split("/")
    found: dict[str, Sample] = {}
    spare: list[Sample] = []
    for number in range(20 * count):
        if len(found) == count:
            break
        sample = draw(domain, level, split, f"{seed}/{number}")
        if not tokens.fits(domain, sample):
            continue
        if sample.prompt in found:
            spare.append(sample)
        found.setdefault(sample.prompt, sample)
    return [*found.values(), *spare][:count]


class Exam:
    """Fixed prompts for a model whose weights change in place; one generator per domain, made when it is needed.

    Args:
        model: the model.
        tokens: its tokenizer.
        samples: prompts by sub-task, the same number for all levels of a domain.
        storage: uint8 for the caches; none: room for the largest.
    """

    def __init__(
        self, model: Model, tokens: Tokens, samples: dict[str, list[Sample]], storage: torch.Tensor | None = None
    ):
        self._model, self._tokens, self._samples = model, tokens, samples
        self._domains = [domain for domain in DOMAINS if levels_of(domain)[0] in samples]
        self._rows = {domain: self._prepared(domain) for domain in self._domains}
        if storage is None:
            sizes = [cache_bytes(model, len(rows), self._places(domain)) for domain, rows in self._rows.items()]
            storage = torch.empty(max(sizes), dtype=torch.uint8, device=model.device)
        self._storage = storage
        self._generators: dict[str, Generator] = {}
        self._inputs: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def _prepared(self, domain: str) -> list[list[int]]:
        return self._tokens.encode([s.prompt for task in levels_of(domain) for s in self._samples[task]])

    def _room(self, domain: str) -> int:
        return -(-max(map(len, self._rows[domain])) // 8) * 8

    def _places(self, domain: str) -> int:
        return self._room(domain) + DOMAINS[domain].length

    def _generator(self, domain: str) -> Generator:
        if domain not in self._generators:
            total, row = len(self._rows[domain]), cache_bytes(self._model, 1, self._places(domain))
            blocks = -(-total // (self._storage.numel() // row))
            self._generators[domain] = Generator(
                self._model, -(-total // blocks), self._room(domain), DOMAINS[domain].length, storage=self._storage
            )
        return self._generators[domain]

    def _blocks(self, domain: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Prompts as the generator takes them, the last block filled up with the first prompts; made once."""
        if domain not in self._inputs:
            generator, rows = self._generator(domain), self._rows[domain]
            size = generator.prompts
            whole = [*rows, *rows[: -len(rows) % size]]
            starts = range(0, len(rows), size)
            device = self._model.device
            self._inputs[domain] = [filled(whole[i : i + size], generator.room, device) for i in starts]
        return self._inputs[domain]

    def answers(self, domain: str) -> tuple[list[str], list[int]]:
        """Texts and their lengths in tokens, easy ones first."""
        texts: list[str] = []
        sizes: list[int] = []
        for block in self._blocks(domain):
            found = self._tokens.decode(self._generator(domain)(*block))
            texts, sizes = texts + found[0], sizes + found[1]
        count = len(self._rows[domain])
        return texts[:count], sizes[:count]

    def right(self, domains: list[str] | None = None) -> dict[str, np.ndarray]:
        """Which answers are right, bool [prompts], by sub-task."""
        found: dict[str, np.ndarray] = {}
        for domain in domains or self._domains:
            wanted = [s.answer for task in levels_of(domain) for s in self._samples[task]]
            exact = np.array([verdict.exact for verdict in judged(domain, *self.answers(domain), wanted)])
            found |= dict(zip(levels_of(domain), np.split(exact, len(LEVELS)), strict=True))
        return found


def means(right: dict[str, np.ndarray]) -> dict[str, float]:
    """Share of right answers by domain, mean of its levels."""
    domains = dict.fromkeys(task.split("/")[0] for task in right)
    return {domain: float(np.mean([right[task].mean() for task in levels_of(domain)])) for domain in domains}


class Scorer:
    """Scores checkpoints of one seed; prompts, caches and graphs are kept from one to the next.

    Args:
        work: the working folder; the tokenizer and config are those of `raw` in it.
        seed: of the prompts.
        device: cpu, cuda or cuda:0.
        tiny: a few prompts only.
    """

    def __init__(self, work: Path, seed: int, device: str, *, tiny: bool = False):
        if device.startswith("cuda:"):
            torch.cuda.set_device(device)
        self._work, self._seed, self._device = work, seed, device
        self._counts = TINY_COUNTS if tiny else COUNTS
        self._shape, self._tokens = read_shape(work / "raw"), Tokens(work / "raw")
        self._models: dict[torch.dtype, Model] = {}
        self._samples: dict[tuple[str, str], list[Sample]] = {}
        self._exams: dict[tuple[torch.dtype, str, int], Exam] = {}

    @cached_property
    def _storage(self) -> torch.Tensor:
        """Caches of the longest domain in bfloat16, for both levels of the largest split."""
        model = model_of(Weights.empty(self._shape, torch.bfloat16, "meta"))
        count = len(LEVELS) * max(self._counts.values())
        most = max(cache_bytes(model, count, task.room + task.length) for task in DOMAINS.values())
        return torch.empty(most, dtype=torch.uint8, device=self._device)

    def score(
        self, weights: Path, split: str, domains: list[str] | None = None, count: int | None = None
    ) -> dict[str, np.ndarray]:
        """Which answers are right, bool [prompts], by sub-task ("tool/easy"), in the order of the prompts.

        Args:
            weights: a checkpoint folder; one in float32 is scored in float32.
            split: dev, test or check.
            domains: some of them; none: all.
            count: prompts of a sub-task, the first ones; none: 256 of dev, 512 of test.
        """
        weights = Path(weights)
        dtype = dtype_of(weights)
        if dtype not in self._models:
            self._models[dtype] = model_of(Weights.empty(self._shape, dtype, self._device))
        copy_weights(weights, self._models[dtype].weights)
        return self._exam(dtype, split, count or self._counts[split]).right(domains)

    def _exam(self, dtype: torch.dtype, split: str, count: int) -> Exam:
        key = (dtype, split, count)
        if key not in self._exams:
            samples = {task: self._drawn(split, task)[:count] for domain in DOMAINS for task in levels_of(domain)}
            self._exams[key] = Exam(self._models[dtype], self._tokens, samples, self._storage)
        return self._exams[key]

    def _drawn(self, split: str, task: str) -> list[Sample]:
        if (split, task) not in self._samples:
            self._samples[split, task] = prompts(self._tokens, task, split, self._seed, self._counts[split])
        return self._samples[split, task]
