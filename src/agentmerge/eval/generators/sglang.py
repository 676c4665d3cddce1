"""SGLang in this process (written after version 0.5.23)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentmerge.eval.generators.offline import Offline
from agentmerge.eval.request import Response

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.eval.request import Request


@dataclass(frozen=True)
class SGLang(Offline):
    """`sglang.Engine`; every sampling parameter is given, so that none comes from generation_config.json."""

    kind = "sglang"

    @cached_property
    def engine(self) -> Any:
        """Started at the first request."""
        self.installed()
        return import_module("sglang").Engine(
            model_path=self.folder,
            dtype=self.dtype,
            tp_size=self.gpus,
            context_length=self.positions,
            sampling_defaults="openai",
        )

    def complete(self, encoded: Sequence[tuple[Request, list[int]]]) -> list[Response]:
        """One call of `Engine.generate`."""
        outputs = self.engine.generate(
            input_ids=[tokens for _, tokens in encoded],
            sampling_params=[sampling_of(request) for request, _ in encoded],
        )
        return [response_of(output) for output in outputs]


def sampling_of(request: Request) -> dict[str, Any]:
    """SGLang's sampling parameters."""
    sampling = request.sampling
    found: dict[str, Any] = {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,  # -1 keeps all
        "stop": list(sampling.stop),
        "repetition_penalty": 1.0,
    }
    return found if request.seed is None else found | {"sampling_seed": request.seed}


def response_of(output: Mapping[str, Any]) -> Response:
    """Of one of the dicts that come back."""
    facts = output["meta_info"]
    reason = facts["finish_reason"]
    matched = reason.get("matched")
    return Response(
        text=output["text"],
        finished=reason["type"] != "length",
        prompt_tokens=facts["prompt_tokens"],
        tokens=facts["completion_tokens"],
        stop=matched if isinstance(matched, str) else None,
    )
