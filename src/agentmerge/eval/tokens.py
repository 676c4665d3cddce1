"""A model's own tokenizer as transformers has it: requests become the tokens that the model reads."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from agentmerge.errors import EvalError, Where
from agentmerge.importance.quiet import quiet
from agentmerge.machine import how_to_install

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.eval.request import Request


@cache
def load_tokenizer(folder: Path | str) -> Any:
    """The tokenizer of a checkpoint's folder, padding on the left.

    Raises:
        EvalError: transformers is not installed, or there is no tokenizer that it can read.
    """
    try:
        import transformers
    except ImportError:
        raise EvalError("A tokenizer needs transformers:", todo=f"{how_to_install('eval')}.") from None
    library: Any = transformers
    try:
        with quiet(library):
            tokenizer = library.AutoTokenizer.from_pretrained(str(folder), padding_side="left")
    except (OSError, ValueError, KeyError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        where = Where(path=str(folder))
        raise EvalError(f"{folder}: its tokenizer can't be read: {first[:200]}", where=where) from None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def encode(tokenizer: Any, request: Request) -> list[int]:
    """The tokens of a request: a chat by the model's template, text as the tokenizer begins one.

    Raises:
        EvalError: the tokenizer has no chat template, or its template refuses the chat.
    """
    if request.messages is None:
        return list(tokenizer(request.prompt)["input_ids"])
    chat = [{"role": message.role, "content": message.content} for message in request.messages]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program of whoever trained the model
        roles = ", ".join(message.role for message in request.messages)
        raise EvalError(
            f"The tokenizer of {tokenizer.name_or_path} can't put a chat ({roles}) in its template: {error}",
            todo="Give a model with a chat template, or a suite's setting that asks without one.",
        ) from None
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
