"""Run a program on a test in this very process, and say what came of it; only a child may do that, see `child`."""

from __future__ import annotations

import io
import json
import signal
import sys
import types
import typing
from importlib import import_module
from math import ceil
from typing import Any

VERDICTS = {True: "passed", -1: "timeout", -2: "wrong", -3: "timeout", -4: "error"}.values()
_CODES = {-1: "timeout", -2: "wrong", -3: "timeout", -4: "error"}
"""What livecodebench says of a test that was not passed."""


def livecodebench() -> Any:
    """Livecodebench's `testing_util`; of the package nothing else is used, and that needs numpy and tqdm alone."""
    return import_module("livecodebench.evaluation.testing_util")


def prepared() -> None:
    """What livecodebench has every program import is imported here, once for all of them."""
    exec(livecodebench().import_string, {})


def graded(trial: dict[str, Any]) -> str:
    """The verdict on one trial, by its executor and comparator."""
    run = by_livecodebench if trial["executor"] == "lcb" else by_script
    return run(trial["code"], trial["stdin"], trial["expected"], ceil(trial["seconds"]), trial["comparator"])


def by_livecodebench(code: str, stdin: str, expected: str, seconds: int, comparator: str) -> str:
    """One call of livecodebench with one test, since it stops at the first that fails.

    It makes a function of the program, so a name that is assigned outside of functions can't be told `global`.

    Reference: nvidia-livecodebench 26.3, `testing_util.run_test`. With the comparator "cure" its two functions that
    read lines are replaced: a text is one line, and no line is made of decimals.
    """
    harness = livecodebench()
    if comparator == "cure":
        harness.get_stripped_lines = lambda text: [" ".join(text.split())]
        harness.convert_line_to_decimals = lambda line: (False, [])
    test = {"input_output": json.dumps({"inputs": [stdin], "outputs": [expected]})}
    said = harness.run_test(test, test=code, debug=False, timeout=seconds)[0][0]
    return "passed" if said is True else _CODES.get(said, "error")


def by_script(code: str, stdin: str, expected: str, seconds: int, comparator: str) -> str:
    """Run the program as __main__ with text streams in place of the standard ones, the way CURE's evaluation does.

    Reference: CURE, evaluation/eval.py. It differs in that a program that prints much is no timeout.
    """
    main = types.ModuleType("__main__")
    vars(main).update({"List": typing.List, "Tuple": typing.Tuple, "Optional": typing.Optional})  # noqa: UP006
    sys.modules["__main__"] = main
    sys.stdin, sys.stdout = io.StringIO(stdin), io.StringIO()
    printed = sys.stdout
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(seconds)
    try:
        exec(compile(code, "program.py", "exec"), vars(main))
    except SystemExit:
        pass
    except TimeoutError as error:
        return "timeout" if error.args == (_LATE,) else "error"
    except Exception:
        return "error"
    finally:
        signal.alarm(0)
    return "passed" if same(printed.getvalue(), expected, comparator) else "wrong"


def same(printed: str, expected: str, comparator: str) -> bool:
    """Whether two outputs are the same.

    cure: equal once every run of whitespace is one space. lcb: as many lines without the empty ones around them, each
    equal but for spaces around it, or made of equal decimal numbers.
    """
    if comparator == "cure":
        return printed.split() == expected.split()
    left, right = ([line.strip() for line in text.strip().split("\n")] for text in (printed, expected))
    return len(left) == len(right) and all(map(_same_line, left, right))


def _same_line(left: str, right: str) -> bool:
    from decimal import Decimal, InvalidOperation

    if left == right:
        return True
    try:
        return list(map(Decimal, left.split())) == list(map(Decimal, right.split()))
    except InvalidOperation:
        return False


_LATE = "the program's time is over"


def _late(*_: object) -> None:
    raise TimeoutError(_LATE)
