"""The generators, a file each; this table is their door. A generator's module is imported when it is asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentmerge.eval.generators.generator import Generator
    from agentmerge.eval.options import Options

GENERATORS = ("openai", "hf", "vllm", "sglang")
"""Those that a command can name; `replay` is for programs."""


def generator_of(
    kind: str, model: str, options: Options, waiting: Callable[[str, float], None] | None = None
) -> Generator:
    """One of the table for a model.

    Args:
        kind: its name in the table.
        model: a folder; of `openai` a name.
        options: who answers, and how.
        waiting: told why and for how many seconds a server is waited for.

    Raises:
        EvalError: the server does not tell which of its models is meant.
    """
    empty = options.too_long == "empty"
    if kind == "openai":
        from agentmerge.eval.generators.http import unheard
        from agentmerge.eval.generators.openai import OpenAI, served_model

        return OpenAI(
            server=options.server,
            model=options.served_name or served_model(options.server, model),
            concurrency=options.concurrency,
            timeout=options.timeout,
            fields=json.loads(options.server_fields),
            empty_if_too_long=empty,
            waiting=waiting or unheard,
        )
    if kind == "hf":
        from agentmerge.eval.generators.hf import Transformers

        return Transformers(
            model, device=options.device, dtype=options.dtype, batch=options.batch, empty_if_too_long=empty
        )
    if kind == "vllm":
        from agentmerge.eval.generators.vllm import Vllm

        return Vllm(model, dtype=options.dtype, gpus=options.gpus, empty_if_too_long=empty)
    from agentmerge.eval.generators.sglang import SGLang

    return SGLang(model, dtype=options.dtype, gpus=options.gpus, empty_if_too_long=empty)
