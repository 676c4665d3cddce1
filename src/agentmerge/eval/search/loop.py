"""ZeroSearch's loop: think, search, read, answer.

The instruction, the tags and the words on an invalid action are the protocol and stand here word for word:
llm_agent/generation.py and inference.py of https://github.com/Alibaba-NLP/ZeroSearch, which took them from
https://github.com/PeterGriffinJin/Search-R1; both under the Apache License 2.0 (see NOTICE).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from agentmerge.eval.search.retriever import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentmerge.eval.request import Request, Response
    from agentmerge.eval.suite import Conversation

PROMPT = """Answer the given question. You must conduct reasoning inside <think> and </think> first every time you \
get new information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> \
query </search> and it will return the top searched results between <information> and </information>. You can search \
as many times as your want. If you find no further external knowledge needed, you can directly provide the answer \
inside <answer> and </answer>, without detailed illustrations. For example, <answer> Beijing </answer>. Question: \
{question}
"""
INVALID = """
My previous action is invalid. If I want to search, I should put the query between <search> and </search>. If I want \
to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.
"""
STOPS = ("</search>", "</answer>")
ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
OPENED = re.compile(r"<(search|answer)>")


class Turn(NamedTuple):
    """What the model wrote, and what it then read."""

    written: str
    read: str


def prompt_of(question: str) -> str:
    """The instruction with a question, which ends with a question mark."""
    return PROMPT.format(question=question if question.endswith("?") else f"{question}?")


def search_loop(
    ask: Callable[[Sequence[Turn]], Request], search: Callable[[str], list[str]], turns: int
) -> Conversation:
    """Let the model search up to `turns` times, and then once more say something, which is not searched for.

    The first tag of a turn counts. A turn without one is told so, and is a turn.

    Args:
        ask: the request after some turns.
        search: passages for a query.
        turns: after which only an answer counts.

    Returns:
        {"answer": text or null, "searches": queries, "invalid": turns without a tag}.

    Reference:
        Sun et al., "ZeroSearch: Incentivize the Search Capability of LLMs without Searching",
        https://arxiv.org/abs/2505.04588; `run_llm_loop` of its code.
    """
    told: list[Turn] = []
    queries: list[str] = []
    for turn in range(turns + 1):
        (response,) = yield [ask(told)]
        written = up_to_action(response)
        action = ACTION.search(written)
        if action is not None and action[1] == "answer":
            return _output(action[2].strip(), queries, told)
        read = INVALID if action is None else ""
        if action is not None and turn < turns:
            queries.append(action[2].strip())
            read = f"\n\n<information>{as_text(search(queries[-1])).strip()}</information>\n\n"
        told.append(Turn(written, read))
    return _output(None, queries, told)


def up_to_action(response: Response) -> str:
    """A turn's text to the end of its action, with the tag that it stopped at.

    Where the generator does not tell what it stopped at, a tag that is open is taken to be the one.
    """
    text = response.text
    last = OPENED.findall(text)[-1:]
    if response.stop in STOPS:
        text += response.stop
    elif response.finished and last and f"</{last[0]}>" not in text.rpartition(f"<{last[0]}>")[2]:
        text += f"</{last[0]}>"
    for stop in STOPS:
        if stop in text:
            return text.split(stop)[0] + stop
    return text


def _output(answer: str | None, queries: Sequence[str], told: Sequence[Turn]) -> dict[str, object]:
    return {"answer": answer, "searches": list(queries), "invalid": sum(turn.read == INVALID for turn in told)}
