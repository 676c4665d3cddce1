"""Squared gradients of the log-likelihood of responses, summed."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import torch
import transformers

from agentmerge.errors import DataError, MergeError, RecipeError, SourceError, Where
from agentmerge.importance.names import Parameter
from agentmerge.importance.quiet import quiet
from agentmerge.tensors import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from agentmerge.importance.tokens import Tokenizer, TokenSequence
    from agentmerge.tensors import Array

DEVICES = ("auto", "cpu", "cuda")
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}
VERSIONS = {"torch": str(torch.__version__), "transformers": str(transformers.__version__)}


def choose_device(wanted: str) -> str:
    """`auto` is cuda where there is one.

    Raises:
        RecipeError: cuda is wanted and not there.
    """
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        todo = "Use --device cpu, or install a CUDA build."
        raise RecipeError("--device cuda: torch finds no CUDA device.", todo=todo, where=Where(path="device"))
    return ("cuda" if there else "cpu") if wanted == "auto" else wanted


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer beside the weights.

    Raises:
        SourceError: there is none that transformers can load.
    """
    try:
        with quiet(transformers):
            tokenizer: Tokenizer = transformers.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # transformers raises whatever its files lead to
        refused = f"{folder}: transformers can't load its tokenizer: {line_of(error)}"
        raise SourceError(refused, where=Where(path=str(folder))) from error
    return tokenizer


class Fisher:
    """The sums of squared gradients of one model: sum over examples of (d/d theta of log p(response | prompt))^2.

    The log-likelihood of a response is the *sum* of its tokens' (not their mean): its gradient is the score whose
    square the empirical Fisher is, so a longer response counts for more. One example at a time: the square of a
    batch's gradient is not the sum of the squares. A tied parameter has one gradient, the sum over its uses, and so
    one array. Squares are taken and summed in float32 as each gradient comes, so no two gradients are held at once.
    """

    def __init__(self, folder: Path, device: str, dtype: str) -> None:
        """Load the model.

        Args:
            folder: config and weights.
            device: "cpu" or "cuda".
            dtype: a key of DTYPES: of weights, activations and gradients.

        Raises:
            SourceError: transformers can't load it as a causal language model, or the files lack a weight.
        """
        self._device = device
        self._model = load_model(folder, DTYPES[dtype]).to(device)
        self._sums: dict[str, Any] = {}
        self._total = torch.zeros((), dtype=torch.float32, device=device)
        for name, parameter in self._model.named_parameters():
            parameter.requires_grad_(True)
            self._sums[name] = torch.zeros(parameter.shape, dtype=torch.float32, device=device)
            parameter.register_post_accumulate_grad_hook(self._taker(self._sums[name]))
        keeps = inspect.signature(self._model.forward).parameters
        self._keep = next((word for word in ("logits_to_keep", "num_logits_to_keep") if word in keeps), None)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Of the sums, by the model's own names."""
        return tuple(TensorSpec(name, "F32", tuple(array.shape)) for name, array in self._sums.items())

    def names(self) -> dict[str, Parameter]:
        """Every parameter in the words of the model's files, the main name of a tied one first."""
        shapes = {name: torch.empty(array.shape, device="meta") for name, array in self._sums.items()}
        main = as_stored(self._model, shapes)
        every = as_stored(self._model, self._with_tied(shapes))
        return {name: Parameter(tuple(array.shape), id(array)) for name, array in [*main.items(), *every.items()]}

    def observe(self, example: TokenSequence) -> float:
        """Add one example; its log-likelihood, summed over the response tokens.

        Raises:
            DataError: the likelihood or a gradient is not finite.
            MergeError: the device has too little memory.
        """
        self._total.zero_()
        try:
            likelihood = self._log_likelihood(example)
            likelihood.backward()
        except torch.cuda.OutOfMemoryError as error:
            needs = f"the example of line {example.line} ({example.tokens} tokens) needs more memory than the GPU has:"
            todo = f"{line_of(error)} Lower --max-length, or use --device cpu."
            raise MergeError(needs, todo=todo) from None
        value = float(likelihood.detach())
        if not math.isfinite(value) or not math.isfinite(float(self._total)):
            raise DataError(
                f"the example of line {example.line} gives a gradient that is not finite (log-likelihood {value})",
                expected="finite numbers",
                todo="Try --dtype float32, and check the model with `agentmerge probe`.",
            )
        return value

    def sums(self) -> Iterator[tuple[str, Array]]:
        """The sums by the model's own names, float32; views where they are in the CPU's memory."""
        for name, array in self._sums.items():
            yield name, array.cpu().numpy()

    def restore(self, sums: Iterable[tuple[str, Array]]) -> None:
        """Go on from the sums of an earlier run, flat."""
        for name, array in sums:
            self._sums[name].copy_(torch.from_numpy(array).reshape(self._sums[name].shape))

    def stored_sums(self) -> dict[str, Array]:
        """The sums in the names and shapes of the model's files, float32."""
        arrays = {name: array.cpu() for name, array in self._sums.items()}
        return {
            name: array.contiguous().numpy() for name, array in as_stored(self._model, self._with_tied(arrays)).items()
        }

    def _log_likelihood(self, example: TokenSequence) -> Any:
        """Sum over response tokens of log p(token | prefix), in float32 or wider."""
        tokens = torch.tensor([[*example.prompt, *example.response]], device=self._device)
        count = len(example.response)
        keep = {} if self._keep is None else {self._keep: count + 1}
        logits = self._model(input_ids=tokens, use_cache=False, **keep).logits[0, -(count + 1) : -1]
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return -torch.nn.functional.cross_entropy(wide, tokens[0, -count:], reduction="sum")

    def _taker(self, total: Any) -> Any:
        def take(parameter: Any) -> None:
            grad, parameter.grad = parameter.grad, None
            square = grad.to(torch.promote_types(grad.dtype, torch.float32)).square()
            total.add_(square)
            self._total.add_(square.sum())

        return take

    def _with_tied(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The same arrays under every name of their parameters."""
        main = {id(parameter): name for name, parameter in self._model.named_parameters()}
        every = self._model.named_parameters(remove_duplicate=False)
        return {name: arrays[main[id(parameter)]] for name, parameter in every}


def load_model(folder: Path, dtype: Any) -> Any:
    """The causal language model of a folder, in this dtype, ready to be asked.

    Raises:
        SourceError: transformers can't load it, or the files lack a weight.
    """
    word = "dtype" if _version() >= (4, 56) else "torch_dtype"
    auto: Any = transformers.AutoModelForCausalLM  # its annotations leave out the pair that loading info returns
    try:
        with quiet(transformers):
            model, report = auto.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False, output_loading_info=True, **{word: dtype}
            )
    except Exception as error:  # transformers raises whatever its files lead to
        refused = f"{folder}: transformers can't load it as a causal language model: {line_of(error)}"
        raise SourceError(refused, where=Where(path=str(folder))) from error
    if missing := sorted(report["missing_keys"]):
        lacking = f"{folder}: the files lack {missing[0]} and {len(missing) - 1} more weights of the model."
        raise SourceError(lacking, where=Where(tensor=missing[0], path=str(folder)))
    return model.eval()


def as_stored(model: Any, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays by a model's own names, as its files name and divide them: transformers 5 renames and fuses on loading."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return dict(arrays)
    return dict(revert_weight_conversion(model, dict(arrays)))


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in transformers.__version__.split(".")[:2])


def line_of(error: Exception) -> str:
    """The first lines of another library's message."""
    return " ".join(str(error).split())[:300]
