"""Answer prompts greedily with a transformers checkpoint. The only file of the demo that knows torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.errors import MergeError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BATCH = 256
LONGEST_ANSWER = 32
"""Tokens, and the longest right answer has 29 with its end."""


def available() -> bool:
    """Whether torch and transformers are installed."""
    from importlib.util import find_spec

    return find_spec("torch") is not None and find_spec("transformers") is not None


class Agent:
    """A checkpoint that answers."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer

    @classmethod
    def load(cls, folder: Path | str) -> Agent:
        """Read a checkpoint's folder; its numbers are computed with in float32.

        Raises:
            MergeError: torch or transformers is not installed.
        """
        if not available():
            raise MergeError("Scoring needs torch and transformers: python -m pip install 'agentmerge[eval]'.")
        import transformers

        library: Any = transformers
        library.utils.logging.disable_progress_bar()
        model = library.AutoModelForCausalLM.from_pretrained(folder).float()
        return cls(model.eval(), library.AutoTokenizer.from_pretrained(folder, padding_side="left"))

    def answers(self, prompts: Sequence[str]) -> list[tuple[str, bool]]:
        """The greedy answer to every prompt, and whether it was finished; prompts of like length share a batch."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        found: dict[int, tuple[str, bool]] = {}
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            found |= zip(places, self._batch([prompts[i] for i in places]), strict=True)
        return [found[i] for i in range(len(prompts))]

    def _batch(self, prompts: list[str]) -> list[tuple[str, bool]]:
        import torch

        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True)
        with torch.inference_mode():
            tokens = self.model.generate(**inputs, do_sample=False, max_new_tokens=LONGEST_ANSWER)
        tokens = tokens[:, inputs["input_ids"].shape[1] :]
        finished = (tokens == self.tokenizer.eos_token_id).any(dim=1).tolist()
        return list(zip(self.tokenizer.batch_decode(tokens, skip_special_tokens=True), finished, strict=True))
