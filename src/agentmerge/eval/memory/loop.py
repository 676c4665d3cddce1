"""How a model reads a long context: section by section with a memory, or all at once.

The prompts are MemAgent's, word for word, for they are the protocol: taskutils/memory_eval/utils/recurrent.py,
recurrent_boxed.py and openai_api.py of https://github.com/BytedTsinghua-SIA/MemAgent, Copyright 2025 Bytedance Ltd.
and/or its affiliates, Apache License 2.0 (see NOTICE).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentmerge.eval.memory.scoring import Ending, after_thinking
from agentmerge.eval.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentmerge.eval.request import Sampling
    from agentmerge.eval.suite import Conversation

NO_MEMORY = "No previous memory"
UPDATE = """You are presented with a problem, a section of an article that may contain the answer to the problem, \
and a previous memory. Please read the provided section carefully and update the memory with the new information \
that helps to answer the problem. Be sure to retain all relevant details from the previous memory while adding any \
new, useful information.

<problem>\x20
{problem}
</problem>

<memory>
{memory}
</memory>

<section>
{section}
</section>

Updated memory:
"""
ANSWER = """You are presented with a problem and a previous memory. Please answer the problem based on the previous \
memory and {ending}.

<problem>\x20
{problem}
</problem>

<memory>
{memory}
</memory>

Your answer:
"""
ENDINGS: dict[Ending, str] = {
    "sentence": 'format your response as follows "Therefore, the answer is (insert answer here)"',
    "boxed": "put the answer in \\boxed{}",
}
DIRECT = """Please read the following text and answer the question below.

<text>
{context}
</text>

{problem}

Format your response as follows: "Therefore, the answer is (insert answer here)"."""


def recurrent(problem: str, sections: Iterable[str], sampling: Sampling, ending: Ending) -> Conversation:
    """Read section by section, each in a fresh message with the memory so far, then answer from the memory alone.

    Args:
        problem: the question.
        sections: of the context, in their order; each is taken when its turn comes.
        sampling: of every step.
        ending: how the answer is to be given.

    Returns:
        {"response": the last answer}.

    Reference:
        Yu et al., "MemAgent: Reshaping Long-Context LLM with Multi-Conv RL-based Memory Agent",
        https://arxiv.org/abs/2507.02259, section 3.
    """
    memory = NO_MEMORY
    for section in sections:
        text = UPDATE.format(problem=problem, memory=memory, section=section)
        (response,) = yield [Request.chat(text, sampling)]
        memory = after_thinking(response.text)
    text = ANSWER.format(problem=problem, memory=memory, ending=ENDINGS[ending])
    (response,) = yield [Request.chat(text, sampling)]
    return {"response": response.text}


def direct(prompt: str, sampling: Sampling) -> Conversation:
    """Answer one message that holds the whole context.

    Args:
        prompt: `DIRECT`, filled.
        sampling: of the answer.

    Returns:
        {"response": the answer}.
    """
    (response,) = yield [Request.chat(prompt, sampling)]
    return {"response": response.text}
