"""Answers of a transformers checkpoint in this process; torch is imported when the first one is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentmerge.errors import EvalError
from agentmerge.eval.request import Response, Sampling
from agentmerge.eval.samples import Answer
from agentmerge.eval.tokens import load_tokenizer
from agentmerge.importance.quiet import quiet
from agentmerge.machine import how_to_install

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BATCH = 256
"""Prompts of the demo answered together."""
LONGEST = 32
"""Tokens of an answer; of the demo's tasks the longest right one has 29 with its end."""
BEHIND = 16
"""Tokens looked at besides those that a stop text may take: a token can be less than a character."""


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
    """Tokens after which `answers` cuts one off."""
    threads: int | None = None
    """Processors that one answer is computed by; None leaves it to torch, which takes all of them. Models of a few
    million parameters are quicker with one, several times where other work is done besides."""

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        longest: int = LONGEST,
        threads: int | None = None,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> LanguageModel:
        """Read a checkpoint's folder.

        Args:
            folder: with weights, config and tokenizer.
            longest: tokens after which `answers` cuts one off.
            threads: see the class.
            device: of torch, for example "cuda"; "auto" takes a GPU where there is one.
            dtype: that is computed in; "auto" is float32 on a CPU and the checkpoint's own on a GPU.

        Raises:
            EvalError: torch or transformers is not installed.
        """
        if not available():
            todo = f"{how_to_install('eval')}."
            raise EvalError("Scoring needs torch and transformers:", todo=todo)
        import torch
        import transformers

        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if dtype == "auto" and device == "cpu":
            dtype = "float32"
        library: Any = transformers
        with quiet(library):
            model = library.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device)
        return cls(model.eval(), load_tokenizer(str(folder)), longest, threads)

    def answers(self, prompts: Sequence[str]) -> list[Answer]:
        """The greedy answer to every prompt; prompts of like length share a batch."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        answers: dict[int, Answer] = {}
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            encoded = [self.tokenizer(prompts[i])["input_ids"] for i in places]
            found = self.complete(encoded, Sampling(max_tokens=self.longest))
            answers |= {i: Answer(one.text, one.finished) for i, one in zip(places, found, strict=True)}
        return [answers[i] for i in range(len(prompts))]

    @property
    def positions(self) -> int | None:
        """Tokens of the longest text that the model takes; None where its config does not tell."""
        config = self.model.config.get_text_config()
        return getattr(config, "max_position_embeddings", None)

    def complete(self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int | None = None) -> list[Response]:
        """One answer to each of these prompts, which make one batch.

        Args:
            prompts: token ids.
            sampling: of all of them; its own seed is not looked at.
            seed: of the whole batch.
        """
        rows = self._continued(prompts, sampling, seed)
        return [self._response(ids, new, sampling) for ids, new in zip(prompts, rows, strict=True)]

    def continued(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[list[int]]:
        """The tokens of one answer to each of these prompts, the end token included where it came."""
        ends = self._ends()
        rows = self._continued(prompts, sampling)
        return [new[: next((i + 1 for i, token in enumerate(new) if token in ends), len(new))] for new in rows]

    def _continued(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int | None = None
    ) -> list[list[int]]:
        """What comes behind each prompt, padded to one length."""
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(self.threads or before)
        if seed is not None:
            torch.manual_seed(seed)
        try:
            inputs = self.tokenizer.pad({"input_ids": [list(ids) for ids in prompts]}, return_tensors="pt")
            inputs = inputs.to(self.model.device)
            with torch.inference_mode():
                tokens = self.model.generate(
                    **{key: inputs[key] for key in ("input_ids", "attention_mask")},
                    generation_config=self._config(sampling),
                    stopping_criteria=self._stopping(sampling, inputs["input_ids"].shape[1]),
                )
        finally:
            torch.set_num_threads(before)
        rows: list[list[int]] = tokens[:, inputs["input_ids"].shape[1] :].tolist()
        return rows

    def _response(self, prompt: Sequence[int], new: list[int], sampling: Sampling) -> Response:
        ends = self._ends()
        end = next((place for place, token in enumerate(new) if token in ends), None)
        text = self.tokenizer.decode(new if end is None else new[:end], skip_special_tokens=True)
        stop, text = cut(text, sampling.stop)
        tokens = len(new) if end is None else end + 1
        return Response(text, end is not None or stop is not None, len(prompt), tokens, stop)

    def _ends(self) -> set[int]:
        """The tokens that end an answer, and the one behind it in a batch."""
        own = self.model.generation_config.eos_token_id
        ends = {*(own if isinstance(own, list) else [own]), self.tokenizer.eos_token_id, self.tokenizer.pad_token_id}
        return {token for token in ends if token is not None}

    def _config(self, sampling: Sampling) -> Any:
        """Every setting that a checkpoint's own generation_config.json might bring is given, so that none does."""
        import transformers

        drawn = sampling.temperature > 0
        ends = sorted(self._ends())
        library: Any = transformers
        return library.GenerationConfig(
            do_sample=drawn,
            temperature=sampling.temperature if drawn else 1.0,
            top_p=sampling.top_p if drawn else 1.0,
            top_k=sampling.top_k or 0 if drawn else 50,  # 50 is what generate takes for "not set"
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            num_beams=1,
            max_new_tokens=sampling.max_tokens,
            max_length=None,
            eos_token_id=ends,
            pad_token_id=self.tokenizer.pad_token_id,
        )

    def _stopping(self, sampling: Sampling, start: int) -> Any:
        """What ends a row of a batch before one of the stop texts; None where there are none."""
        if not sampling.stop:
            return None
        import torch
        import transformers

        longest = max(len(stop.encode()) for stop in sampling.stop) + BEHIND

        def stopped(ids: Any, _scores: Any, **_: Any) -> Any:
            tails = self.tokenizer.batch_decode(ids[:, max(start, ids.shape[1] - longest) :])
            found = [any(stop in tail for stop in sampling.stop) for tail in tails]
            return torch.tensor(found, device=ids.device)

        library: Any = transformers
        return library.StoppingCriteriaList([stopped])


def cut(text: str, stops: Sequence[str]) -> tuple[str | None, str]:
    """The first of the stop texts and what stands before it; None and the whole where there is none."""
    places = [(place, stop) for stop in stops if (place := text.find(stop)) >= 0]
    if not places:
        return None, text
    place, stop = min(places)
    return stop, text[:place]
