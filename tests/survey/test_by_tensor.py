"""Numbers by tensor are one value: equal by what they hold, hashed and written as a digest, gone over once."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from math import inf
from typing import Any

import numpy as np
import pytest

from agentmerge.methods.ties import ElectedSigns
from agentmerge.methods.trim import Trim
from agentmerge.survey.by_tensor import EVERYWHERE, ByTensor
from agentmerge.survey.magnitude import MagnitudeLow

LIMITS = {"w": (0.5, 1e-7), "v": (0.0, inf)}


def test_it_is_what_it_holds_whatever_the_order() -> None:
    one, other = ByTensor(LIMITS), ByTensor(dict(reversed(LIMITS.items())))
    assert one == other
    assert hash(one) == hash(other)
    assert one.digest == other.digest
    assert list(one) == ["v", "w"]
    assert dict(one) == LIMITS
    assert len({one, other, ByTensor(), ByTensor({})}) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"w": (0.5, 1e-7)},
        {**LIMITS, "u": (0.0, 0.0)},
        {**LIMITS, "w": (0.5, 1.0000001e-7)},
        {"w": LIMITS["v"], "v": LIMITS["w"]},
        {"w": (0.5,), "v": (1e-7, 0.0, inf)},
        {},
    ],
)
def test_another_name_or_number_is_another_value(changed: dict[str, Any]) -> None:
    assert ByTensor(changed) != ByTensor(LIMITS)
    assert ByTensor(changed).digest != ByTensor(LIMITS).digest
    assert ElectedSigns(ByTensor(changed)).key != ElectedSigns(ByTensor(LIMITS)).key
    assert Trim(ByTensor(LIMITS), ByTensor(changed)).key != Trim(ByTensor(LIMITS), ByTensor(LIMITS)).key


def test_a_number_for_everywhere_is_that_of_every_tensor() -> None:
    assert ByTensor({EVERYWHERE: (1, 2)}).at("w") == (1, 2)
    assert ByTensor(LIMITS).at("w") == (0.5, 1e-7)
    assert ByTensor(LIMITS).at("u", ()) == ByTensor[float]().at("u", ()) == ()
    with pytest.raises(KeyError, match="u"):
        ByTensor(LIMITS).at("u")


def test_questions_are_written_by_the_digest_and_so_are_of_one_length() -> None:
    few, many = (MagnitudeLow(ByTensor({f"w{i}": (i, i + 1) for i in range(n)})) for n in (1, 1000))
    assert many.key == f'MagnitudeLow {{"bins": "{many.bins.digest}"}}'
    assert len(few.key) == len(many.key)
    assert few.key != many.key


def test_it_travels_to_a_process_that_hashes_texts_in_another_way() -> None:
    question = MagnitudeLow(ByTensor({"w": (1, 2), "v": (3, 4)}))
    same = copy.deepcopy(question)
    assert same == question
    assert same.bins is question.bins
    program = (
        "import pickle, sys\n"
        "from agentmerge.survey.by_tensor import ByTensor\n"
        "from agentmerge.survey.magnitude import MagnitudeLow\n"
        "found, own = pickle.load(sys.stdin.buffer), MagnitudeLow(ByTensor({'v': (3, 4), 'w': (1, 2)}))\n"
        "assert found == own and {found: 1}[own] == 1 and found.bins.at('v') == (3, 4)\n"
        "print(found.key)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(question), capture_output=True, env=environment, check=True
    )
    assert done.stdout.decode().strip() == question.key


def test_numbers_of_numpy_are_those_of_python() -> None:
    assert ByTensor({"a": (np.float64(1.5), np.float32(0.25))}) == ByTensor({"a": (1.5, 0.25)})
