"""vLLM in this process (written after version 0.33)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentmerge.eval.generators.offline import Offline
from agentmerge.eval.request import Response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.eval.request import Request


@dataclass(frozen=True)
class Vllm(Offline):
    """`vllm.LLM`; every sampling parameter is given, so that none comes from generation_config.json."""

    kind = "vllm"

    @cached_property
    def engine(self) -> Any:
        """Started at the first request."""
        self.installed()
        return import_module("vllm").LLM(
            model=self.folder,
            dtype=self.dtype,
            tensor_parallel_size=self.gpus,
            max_model_len=self.positions,
            generation_config="vllm",
        )

    def complete(self, encoded: Sequence[tuple[Request, list[int]]]) -> list[Response]:
        """One call of `LLM.generate`."""
        engine, library = self.engine, import_module("vllm")
        outputs = engine.generate(
            [{"prompt_token_ids": tokens} for _, tokens in encoded],
            [library.SamplingParams(**sampling_of(request)) for request, _ in encoded],
            use_tqdm=False,
        )
        return [response_of(output) for output in outputs]


def sampling_of(request: Request) -> dict[str, Any]:
    """The fields of vLLM's SamplingParams."""
    sampling = request.sampling
    return {
        "n": 1,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or 0,  # 0 keeps all
        "stop": list(sampling.stop),
        "seed": request.seed,
        "repetition_penalty": 1.0,
    }


def response_of(output: Any) -> Response:
    """Of a RequestOutput with one completion."""
    (answer,) = output.outputs
    stop = answer.stop_reason if isinstance(answer.stop_reason, str) else None
    return Response(
        answer.text, answer.finish_reason != "length", len(output.prompt_token_ids), len(answer.token_ids), stop
    )
