"""One model in the memory of torch, whose weights become the base's, an agent's, or a part of the way between."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from agentmerge.errors import DataError, MergeError, SourceError, Where
from agentmerge.eval.generate import LanguageModel
from agentmerge.eval.request import Sampling
from agentmerge.eval.tokens import load_tokenizer
from agentmerge.harm.reading import Between, Reading, counted
from agentmerge.importance import fisher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from agentmerge.harm.reading import Weights
    from agentmerge.importance.tokens import TokenSequence

DEVICES, DTYPES, VERSIONS = fisher.DEVICES, fisher.DTYPES, fisher.VERSIONS
choose_device, load_tokenizer_of = fisher.choose_device, fisher.load_tokenizer

NODES = 6
"""Points of the way from base to agent at which the gradient is taken."""
ANSWERED = 256
"""Prompts that are answered together."""


class Model:
    """The base as transformers loads it, and whatever lies between it and an agent."""

    def __init__(self, folder: Path, device: str, dtype: str, tokens: int) -> None:
        """Load the base.

        Args:
            folder: config, tokenizer and weights.
            device: "cpu" or "cuda".
            dtype: a key of DTYPES: of the numbers that are computed with.
            tokens: of a batch at most, padded; one prompt at least.

        Raises:
            SourceError: transformers can't load it as a causal language model.
        """
        self._device, self._tokens = device, tokens
        self._base = self.weights(folder)
        self._model = fisher.load_model(folder, DTYPES[dtype]).to(device).requires_grad_(False)
        self._speaker = LanguageModel(self._model, load_tokenizer(str(folder)))
        keeps = inspect.signature(self._model.forward).parameters
        self._keep = next((word for word in ("logits_to_keep", "num_logits_to_keep") if word in keeps), None)

    @property
    def stored(self) -> dict[str, str]:
        """What the files call each parameter, as far as one tensor of theirs is one parameter; else its own name."""
        empty = {name: torch.empty(own.shape, device="meta") for name, own in self._base.items()}
        found = {id(array): name for name, array in fisher.as_stored(self._model, empty).items()}
        return {name: found.get(id(array), name) for name, array in empty.items()}

    def weights(self, folder: Path) -> Weights:
        """The parameters of a checkpoint on the device, as stored."""
        found = fisher.load_model(folder, "auto")
        return {name: parameter.detach().to(self._device) for name, parameter in found.named_parameters()}

    def energy(self, agent: Weights) -> dict[str, float]:
        """Sum of tau^2 of every parameter."""
        return {name: float((agent[name].float() - own.float()).square().sum()) for name, own in self._base.items()}

    def check(self, agent: Weights, where: Where) -> None:
        """Raise SourceError where an agent has other parameters than the base."""
        for name, own in self._base.items():
            if name not in agent or agent[name].shape != own.shape:
                found = f"{name} is {list(agent[name].shape) if name in agent else 'not there'}"
                raise SourceError(found, expected=f"{list(own.shape)}", where=where)

    def become(self, what: Between) -> None:
        """Set every weight."""
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                own = self._base[name]
                agent = own if what.agent is None or name in what.skipped else what.agent[name]
                parameter.copy_(agent if what.weight == 1 else torch.lerp(own.float(), agent.float(), what.weight))

    def read(self, examples: Sequence[TokenSequence]) -> Reading:
        """What the model, as it is now, makes of these answers.

        Raises:
            DataError: a likelihood is not finite.
            MergeError: the device has too little memory.
        """
        likelihood, hits = np.zeros(len(examples)), np.zeros(len(examples), np.int64)
        with _computing(self._device), torch.inference_mode():
            for places in self._batches(examples):
                found, right = self._scored([examples[i] for i in places])
                likelihood[places], hits[places] = found.double().cpu().numpy(), right.cpu().numpy()
        if not np.isfinite(likelihood).all():
            raise DataError("a log-likelihood is not finite", expected="finite numbers", todo="Try --dtype float32.")
        return Reading(likelihood, hits)

    def trace(self, agent: Weights, examples: Sequence[TokenSequence]) -> dict[str, float]:
        """Which parameters an agent's drop (`reading.drop_of`) comes from; they add up to the drop.

        With L(theta) the mean over the examples of log p(answer) * min(1, LONG / tokens), and tau = agent - base:

        share[p] = - sum over the elements of p of tau * integral from 0 to 1 of dL/dtheta(base + s tau) ds

        The integral is taken by Gauss-Legendre with NODES points, exact for polynomials of degree 2 * NODES - 1.

        Reference: Sundararajan et al., "Axiomatic Attribution for Deep Networks", ICML 2017, equation 1 and the
        completeness axiom; of weights in place of inputs, with the base as the baseline.
        """
        points, weights = np.polynomial.legendre.leggauss(NODES)
        shares = dict.fromkeys(self._base, 0.0)
        for point, weight in zip((points + 1) / 2, weights / 2, strict=True):
            self.become(Between(agent, float(point)))
            with _computing(self._device):
                slopes = self._slopes(agent, examples)
            for name, dot in slopes.items():
                shares[name] -= float(weight) * dot
        return shares

    def answers(self, prompts: Sequence[tuple[int, ...]], longest: int) -> list[tuple[int, ...]]:
        """The greedy answers of the model as it is now, the end token included where it came."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        found: dict[int, tuple[int, ...]] = {}
        for low in range(0, len(order), ANSWERED):
            places = order[low : low + ANSWERED]
            with _computing(self._device):
                rows = self._speaker.continued([prompts[i] for i in places], Sampling(max_tokens=longest))
            found |= dict(zip(places, map(tuple, rows), strict=True))
        return [found[i] for i in range(len(prompts))]

    def _slopes(self, agent: Weights, examples: Sequence[TokenSequence]) -> dict[str, float]:
        """<dL/dtheta, tau> of every parameter at the weights of now."""
        sums = {name: torch.zeros((), device=self._device) for name in self._base}
        handles = []
        for name, parameter in self._model.named_parameters():
            parameter.requires_grad_(True)
            handles.append(parameter.register_post_accumulate_grad_hook(self._dotted(sums[name], name, agent)))
        try:
            for places in self._batches(examples):
                batch = [examples[i] for i in places]
                weights = torch.from_numpy(counted(batch) / len(examples)).to(self._device)
                (self._scored(batch)[0] * weights).sum().backward()
        finally:
            for handle in handles:
                handle.remove()
            self._model.requires_grad_(False)
        return {name: float(total) for name, total in sums.items()}

    def _dotted(self, total: Any, name: str, agent: Weights) -> Callable[[Any], None]:
        def take(parameter: Any) -> None:
            grad, parameter.grad = parameter.grad, None
            total.add_((grad.float() * (agent[name].float() - self._base[name].float())).sum())

        return take

    def _scored(self, batch: Sequence[TokenSequence]) -> tuple[Any, Any]:
        """Sum of log p and count of likeliest tokens over each answer, both [batch]."""
        longest, first = max(one.tokens for one in batch), min(len(one.prompt) for one in batch) - 1
        tokens = torch.zeros((len(batch), longest), dtype=torch.long)
        counts = torch.zeros((len(batch), longest), dtype=torch.bool)
        for row, one in enumerate(batch):  # padded behind, where no token that counts looks
            tokens[row, : one.tokens] = torch.tensor((*one.prompt, *one.response))
            counts[row, len(one.prompt) : one.tokens] = True
        tokens, counts = tokens.to(self._device), counts[:, first + 1 :].to(self._device)
        keep = {} if self._keep is None else {self._keep: longest - first}
        logits = self._model(input_ids=tokens, use_cache=False, **keep).logits[:, first - longest : -1]
        wide, wanted = logits.to(torch.promote_types(logits.dtype, torch.float32)), tokens[:, first + 1 :]
        found = -torch.nn.functional.cross_entropy(wide.flatten(0, 1), wanted.flatten(), reduction="none")
        hits = (wide.argmax(-1) == wanted) & counts
        return (found.view_as(wanted) * counts).sum(1), hits.sum(1)

    def _batches(self, examples: Sequence[TokenSequence]) -> Iterator[list[int]]:
        """Places of examples that are read together, of like length."""
        held: list[int] = []
        for i in sorted(range(len(examples)), key=lambda i: (len(examples[i].prompt), examples[i].tokens)):
            longest = max(examples[j].tokens for j in (*held, i))
            if held and longest * (len(held) + 1) > self._tokens:
                yield held
                held = []
            held.append(i)
        if held:
            yield held


@contextmanager
def _computing(device: str) -> Iterator[None]:
    """On a GPU float32 products are of TF32 numbers, several times as fast; a full one is the user's to mend."""
    before = torch.get_float32_matmul_precision()
    if device == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        todo = f"{fisher.line_of(error)} Lower --batch-tokens or --max-length, or use --device cpu."
        raise MergeError("the GPU has too little memory:", todo=todo) from None
    finally:
        torch.set_float32_matmul_precision(before)
