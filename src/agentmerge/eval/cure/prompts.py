"""What CURE asks a model for: a program, and a unit test. The words are CURE's, since its agents were trained on them.

Reference: CURE, evaluation/evaluation_config.py (system_prompts, system_case_prompts, special_requirements).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from agentmerge.eval.request import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentmerge.eval.request import Sampling

Style = Literal["cure", "chat"]
"""cure: raw text with CURE's own marks, as its agents are trained and evaluated; chat: the same words as messages, in
the model's own chat template."""
STOP = ("</answer>", "User:", "Human:", "Assistant:", "<|im_end|>", "<|endoftext|>")
"""Where CURE ends an answer; of the style "cure"."""
_PROGRAM_SYSTEM = "You are a helpful assistant help user solve problems. "
_PROGRAM = (
    "You need to think first then write python script. "
    "You should use input() to input and print() to output in your script. \n"
    "This is the problem:\n{problem} "
)
_CASE_SYSTEM = "You are a helpful assistant help user generate test examples for coding tasks. "
_CASE = """Given a coding task, instead of providing the final script, your task is to generate a new test example \
(both input, output and explanation).
This is the problem:
{problem}

{examples}
You need to provide a new test example. A good test example should be completely accurate and conform to the \
problem\u2019s format requirements, while also possessing enough discriminative power to distinguish correct code from \
incorrect code.
Before providing a test example, you must think carefully and reason step by step to derive an input and output you \
are very confident are correct. For example, start by designing an input you can reliably handle, then compute the \
output step by step. If you're unsure about the output, revise or re-design the input to ensure accuracy. Directly \
providing input/output pairs without this process is discouraged, as it often results in low accuracy.
Finally, after completing these previous thinking and derivation steps (you should not write the final test example \
unless you have gone through these steps very thoroughly), you MUST put your final test example in the following format:

**Test Input:**
```input here```

**Test Output:**
```output here```

**Explanation:**

explanation here.
 """


def ask_program(problem: str, sampling: Sampling, style: Style, sample: int) -> Request:
    """One sample of a program."""
    return _request(_PROGRAM_SYSTEM, _PROGRAM.format(problem=problem), sampling, style, sample)


def ask_case(
    problem: str, examples: Sequence[tuple[str, str]], sampling: Sampling, style: Style, sample: int
) -> Request:
    """One sample of a unit test; `examples` are shown as tests that there are already."""
    text = _CASE.format(problem=problem, examples=_shown(examples))
    return _request(_CASE_SYSTEM, text, sampling, style, sample)


def _request(system: str, user: str, sampling: Sampling, style: Style, sample: int) -> Request:
    if style == "chat":
        return Request.chat(user.strip(), sampling, system=system.strip(), sample=sample)
    text = f"<|im_start|>{system}<|im_end|>\n<|im_start|>User: {user}<|im_end|>\n<|im_start|>Assistant: "
    return Request.raw(text, sampling, sample=sample)


def _shown(examples: Sequence[tuple[str, str]]) -> str:
    read, printed = (", ".join(map(repr, column)) for column in zip(*examples, strict=True)) if examples else ("", "")
    if not examples:
        return " "
    if len(examples) == 1:
        return f"We already have one test sample:\n Its input is {read}. Its output is {printed}."
    return (
        f"We already have {len(examples)} test samples:\n The inputs are, respectively, {read}. "
        f"The corresponding outputs are {printed}."
    )
