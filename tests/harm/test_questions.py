"""The prompts of a file: by skill, with an owner, and as tokens with given or made answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge.errors import RecipeError, SourceError
from agentmerge.harm.options import HarmOptions
from agentmerge.harm.questions import Encoder, answered, by_skill, owners_of
from agentmerge.harm.reading import LONG, Reading, counted, drop_of, per_token
from agentmerge.importance.tokens import TokenSequence
from tests.importance.test_data import Letters, tokens

if TYPE_CHECKING:
    from pathlib import Path


def written(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_first_prompts_of_every_skill_are_taken(tmp_path: Path) -> None:
    lines = [{"prompt": f"{skill}{i}", "skill": skill} for i in range(3) for skill in ("a", "b")]
    found = by_skill(written(tmp_path, *lines, {"prompt": "no skill"}), 2)
    assert {skill: [one.prompt for one in held] for skill, held in found.items()} == {
        "a": ["a0", "a1"],
        "b": ["b0", "b1"],
        "": ["no skill"],
    }


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"skill": "a"}, "no prompt"),
        ({"prompt": "a", "skill": 3}, "skill is 3"),
        ({"prompt": "a", "response": ""}, "response is empty"),
        ({"prompt": []}, "prompt is"),
    ],
)
def test_a_line_that_is_no_prompt_is_told_by_file_and_line(tmp_path: Path, line: dict[str, Any], told: str) -> None:
    with pytest.raises(SourceError, match=rf"prompts.jsonl:2: .*{told}"):
        by_skill(written(tmp_path, {"prompt": "fine"}, line), 8)


def test_a_file_without_prompts_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no prompt"):
        by_skill(written(tmp_path), 8)


def test_an_agent_owns_the_skill_of_its_name_or_what_is_said() -> None:
    assert owners_of(["code", "math"], ["code", "tool"], {}) == {"code": ["code"], "math": []}
    assert owners_of(["code", "math"], ["code", "tool"], {"tool": ["math"], "code": ["math"]}) == {
        "code": [],
        "math": ["code", "tool"],
    }
    with pytest.raises(RecipeError, match=r"no skill 'maths'.*'math'"):
        owners_of(["code", "math"], ["tool"], {"tool": ["maths"]})
    with pytest.raises(RecipeError, match=r"no agent 'tools'.*'tool'"):
        owners_of(["code"], ["tool"], {"tools": ["code"]})


def test_given_answers_are_taken_and_the_others_made(tmp_path: Path) -> None:
    lines = [{"prompt": "abcdefgh"}, {"prompt": "ab", "response": "x" * 9}, {"prompt": "ab", "response": "yes"}]
    path = written(tmp_path, *lines)
    encoder = Encoder(Letters(), path, HarmOptions.of(max_length=8, new_tokens=3))
    asked: list[tuple[int, ...]] = []

    def answer(prompts: Any, longest: int) -> list[tuple[int, ...]]:
        asked.extend(prompts)
        return [tuple(range(longest))] * len(prompts)

    found = answered(by_skill(path, 8)[""], encoder, answer)
    assert [one.response for one in found] == [(0, 1, 2), tokens("yes")], "what leaves no room is passed over"
    assert asked == [tokens("defgh")], "a long prompt loses its beginning"
    own = answered(by_skill(path, 8)[""], encoder, answer, given=False)
    assert [one.response for one in own] == [(0, 1, 2)] * 3


def test_a_drop_is_of_whole_answers_and_long_ones_count_as_short_ones() -> None:
    examples = [TokenSequence((1,), (2,) * n, 1, False) for n in (4, 16, 160)]
    before, after = Reading(np.zeros(3), np.zeros(3)), Reading(np.array([-1.0, -2.0, -40.0]), np.zeros(3))
    np.testing.assert_allclose(counted(examples), [1, 1, LONG / 160])
    found = drop_of(before, after, examples)
    assert found.mean == pytest.approx((1 + 2 + 4) / 3)
    assert found.error == pytest.approx(np.std([1, 2, 4], ddof=1) / np.sqrt(3))
    assert per_token(after, examples) == pytest.approx(-43 / 180)
    assert drop_of(before, after, examples).mean == -drop_of(after, before, examples).mean


def test_one_prompt_proves_nothing() -> None:
    example = [TokenSequence((1,), (2,), 1, False)]
    nothing, much = Reading(np.zeros(1), np.zeros(1)), Reading(np.full(1, -50.0), np.zeros(1))
    assert drop_of(nothing, much, example).error == float("inf")
