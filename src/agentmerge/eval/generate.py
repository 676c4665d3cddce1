"""Answer prompts greedily with a transformers checkpoint; torch is imported when the first one is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentmerge.errors import MergeError
from agentmerge.eval.samples import Answer
from agentmerge.importance.quiet import quiet
from agentmerge.machine import how_to_install

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BATCH = 256
"""Prompts answered together."""
LONGEST = 32
"""Tokens of an answer; of the demo's tasks the longest right one has 29 with its end."""


def available() -> bool:
    """Whether torch and transformers are installed."""
    from importlib.util import find_spec

    return find_spec("torch") is not None and find_spec("transformers") is not None


@dataclass(frozen=True)
class LanguageModel:
    """A checkpoint that answers."""

    model: Any
    """A causal language model of transformers."""
    tokenizer: Any
    longest: int = LONGEST
    """Tokens after which an answer is cut off."""
    threads: int | None = None
    """Processors that one answer is computed by; None leaves it to torch, which takes all of them. Models of a few
    million parameters are quicker with one, several times where other work is done besides."""

    @classmethod
    def load(cls, folder: Path | str, *, longest: int = LONGEST, threads: int | None = None) -> LanguageModel:
        """Read a checkpoint's folder; its numbers are computed with in float32.

        Raises:
            MergeError: torch or transformers is not installed.
        """
        if not available():
            todo = f"{how_to_install('eval')}."
            raise MergeError("Scoring needs torch and transformers:", todo=todo)
        import transformers

        library: Any = transformers
        with quiet(library):
            model = library.AutoModelForCausalLM.from_pretrained(folder).float()
            tokenizer = library.AutoTokenizer.from_pretrained(folder, padding_side="left")
        return cls(model.eval(), tokenizer, longest, threads)

    def answers(self, prompts: Sequence[str]) -> list[Answer]:
        """The greedy answer to every prompt; prompts of like length share a batch."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        answers: dict[int, Answer] = {}
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            answers |= zip(places, self._batch([prompts[i] for i in places]), strict=True)
        return [answers[i] for i in range(len(prompts))]

    def _batch(self, prompts: list[str]) -> list[Answer]:
        import torch

        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True)
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads or before)
        try:
            with torch.inference_mode():
                tokens = self.model.generate(**inputs, do_sample=False, max_new_tokens=self.longest)
        finally:
            torch.set_num_threads(before)
        tokens = tokens[:, inputs["input_ids"].shape[1] :]
        finished = (tokens == self.tokenizer.eos_token_id).any(dim=1).tolist()
        return list(map(Answer, self.tokenizer.batch_decode(tokens, skip_special_tokens=True), finished))
