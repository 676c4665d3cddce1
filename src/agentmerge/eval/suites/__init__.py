"""The suites, a file each; this table is their door. A suite's module is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from agentmerge.errors import EvalError, did_you_mean

if TYPE_CHECKING:
    from agentmerge.eval.suite import Suite

SUITES = {
    "bfcl": ("bfcl", "Bfcl"),
    "code": ("code", "Code"),
    "memory": ("memory", "Memory"),
    "ifeval": ("ifeval", "Ifeval"),
    "gsm8k": ("gsm8k", "Gsm8k"),
    "math500": ("math500", "Math500"),
    "search": ("search", "Search"),
    "tiny": ("tiny", "Tiny"),
    "jsonl": ("jsonl", "JsonLines"),
}
"""The module and the class of every suite, in the order of the paper's tables."""


def suite_of(name: str) -> type[Suite]:
    """The class of a suite.

    Raises:
        EvalError: there is none of that name.
    """
    if name not in SUITES:
        raise EvalError(f"no suite '{name}'", todo=did_you_mean(name, SUITES).strip())
    module, kind = SUITES[name]
    found: type[Suite] = getattr(import_module(f"{__name__}.{module}"), kind)
    return found
