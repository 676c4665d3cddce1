"""What is read from a model's answer: a program, or a unit test.

Reference: CURE, evaluation/eval.py, extract_code and extract_test_cases.
"""

from __future__ import annotations

import re

_PROGRAM = re.compile(r"```python(.*?)```", re.DOTALL)
_INPUT, _OUTPUT, _AFTER = (re.escape(f"**{name}:**") for name in ("Test Input", "Test Output", "Explanation"))
_FENCED = {label: re.compile(rf"{label}\s*```(.*?)```", re.DOTALL) for label in (_INPUT, _OUTPUT)}
_BARE = {
    _INPUT: re.compile(rf"{_INPUT}\s*(.*?)(?={_OUTPUT})", re.DOTALL),
    _OUTPUT: re.compile(rf"{_OUTPUT}\s*(.*?)(?={_AFTER}|{_INPUT}|\Z)", re.DOTALL),
}


def program_of(answer: str) -> str | None:
    """The last block of an answer that says it is Python; None where there is none."""
    blocks = _PROGRAM.findall(answer)
    return blocks[-1].strip() if blocks else None


def case_of(answer: str) -> tuple[str, str] | None:
    """The last input and output of an answer, in backticks or bare; None where one of them is missing."""
    read, printed = _part(answer, _INPUT), _part(answer, _OUTPUT)
    return None if read is None or printed is None else (read, printed)


def _part(answer: str, label: str) -> str | None:
    fenced, bare = _FENCED[label].findall(answer), _BARE[label].findall(answer)
    if fenced:
        return _cleaned(fenced[-1].lstrip("\n"))
    return _cleaned(bare[-1].strip()) if bare else None


def _cleaned(text: str) -> str:
    """Without the name of a language that is none, with real ends of lines, and one at the end."""
    text = text.replace("plaintext\n", "").replace("\\n", "\n")
    return text if text.endswith("\n") else f"{text}\n"
