"""What is refused of a recipe's `keep`, and with which saved surveys it goes on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge import merge, probe
from agentmerge.engine.preflight import check
from agentmerge.errors import AlignmentError, DataError, OutputError, RecipeError, SourceError, SurveyError
from agentmerge.files.save import save
from agentmerge.recipe import Recipe
from agentmerge.testing import Sources, read_checkpoint
from tests.engine.test_keep import WUDI, linear, measure, recipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agentmerge.tensors import Array

pytestmark = pytest.mark.usefixtures("unsynced")


def test_what_is_wrong_is_told_before_anything_is_merged(tiny: Sources, tmp_path: Path) -> None:
    keep = measure(tiny, tmp_path / "keep")
    with pytest.raises(RecipeError, match=r"keep: method 'ram' has no use for it.*Use wudi_auto"):
        Recipe.parse(recipe(tiny, keep, "ram"))
    with pytest.raises(RecipeError, match=r"method\.keep: 2, but the recipe does not say .*or leave this out"):
        Recipe.parse(recipe(tiny, None, {"name": "wudi", "keep": 2}))
    name = sorted(linear(tiny))[0]
    save(tmp_path / "other", {name: np.eye(3)})
    with pytest.raises(AlignmentError, match=rf"{name}: keep \(.*has shape \[3, 3\].*Make it again from the base"):
        merge(recipe(tiny, tmp_path / "other"), tmp_path / "out")
    save(tmp_path / "none", {"another.weight": np.eye(3)})
    with pytest.raises(AlignmentError, match=r"keep \(.*no Gram matrix of any layer that is merged.*`agentmerge grams"):
        merge(recipe(tiny, tmp_path / "none"), tmp_path / "out")
    for source in (tiny.base, tiny.agents["tool"]):
        with pytest.raises(AlignmentError, match=r"keep \(.*of BF16 numbers, expected shape .* of F64 or F32"):
            merge(recipe(tiny, source), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_agent_has_its_name_in_a_record(tiny: Sources, tmp_path: Path) -> None:
    given = recipe(tiny, measure(tiny, tmp_path / "keep"))
    given["agents"]["keep"] = given["agents"].pop("code")
    with pytest.raises(RecipeError, match=r"agents\.keep: 'keep' is the keep's own name\. Give this agent another"):
        Recipe.parse(given)


def filled(number: float) -> Callable[[int], Array]:
    return lambda side: np.full((side, side), number)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (filled(np.nan), "NaN or inf"),
        (filled(-1.0), "a negative number on the diagonal"),
        (lambda side: np.tri(side), "not symmetric"),
        (lambda side: 1 - np.eye(side), "an element larger than its diagonal lets it be"),
        (lambda side: 1.5 - np.eye(side), "an element larger than its diagonal lets it be"),
        (lambda side: 1e308 * np.eye(side), "numbers too large to be added up"),
    ],
)
def test_what_is_no_gram_matrix_ends_the_merge(made: Any, told: str, tiny: Sources, tmp_path: Path) -> None:
    save(tmp_path / "bad", {name: made(shape[-1]) for name, shape in linear(tiny).items()})
    with pytest.raises(DataError, match=rf"keep \(.*: {told}"):
        merge(recipe(tiny, tmp_path / "bad"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_however_small_its_numbers_are_only_their_ratios_count(tiny: Sources, tmp_path: Path) -> None:
    for name, number in (("one", 1.0), ("small", 2.0**-1000)):
        save(tmp_path / name, {layer: number * np.eye(shape[-1]) for layer, shape in linear(tiny).items()})
        merge(recipe(tiny, tmp_path / name, WUDI), tmp_path / f"out-{name}")
    found, expected = (read_checkpoint(tmp_path / f"out-{name}") for name in ("small", "one"))
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_a_file_that_was_cut_is_told_with_its_role(tiny: Sources, tmp_path: Path) -> None:
    file = measure(tiny, tmp_path / "keep") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(SourceError, match=r"keep: .*model\.safetensors"):
        merge(recipe(tiny, tmp_path / "keep"), tmp_path / "out")
    (finding,) = check(Recipe.parse(recipe(tiny, tmp_path / "keep"))).findings
    assert (finding.severity, finding.where) == ("error", "keep")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("prompts.jsonl", r"are prompts, expected .*`agentmerge grams BASE --data .*prompts\.jsonl --out FOLDER`"),
        ("grams.json", r"is the record alone, expected the folder .*Name its folder: .*keep"),
    ],
)
def test_a_file_that_is_not_the_matrices_is_told_with_what_is(
    name: str, told: str, tiny: Sources, tmp_path: Path
) -> None:
    (measure(tiny, tmp_path / "keep") / name).write_text("{}")
    with pytest.raises(RecipeError, match=rf"keep: .*{name} {told}"):
        merge(recipe(tiny, tmp_path / "keep" / name), tmp_path / "out")


def test_it_is_never_overwritten(tiny: Sources, tmp_path: Path) -> None:
    keep = measure(tiny, tmp_path / "keep")
    for out in (keep, keep / "inside", tmp_path):
        with pytest.raises(OutputError, match=r"what the base must keep|source of"):
            merge(recipe(tiny, keep), out, overwrite=True)
    assert [path.name for path in keep.iterdir()] == ["model.safetensors"]


# saved surveys


def test_a_survey_serves_with_and_without_but_not_with_another(tiny: Sources, tmp_path: Path) -> None:
    keep, other = measure(tiny, tmp_path / "keep"), measure(tiny, tmp_path / "other", seed=4)
    os.utime(other / "model.safetensors", (0, 0))  # two of one tick of the clock would look the same
    for name, given in (("with", keep), ("without", None)):
        probe(recipe(tiny, given)).save(tmp_path / f"{name}.json")
    for given in (keep, None):
        expected = merge(recipe(tiny, given), tmp_path / f"{given is None}")
        for name in ("with", "without"):
            run = {"survey": str(tmp_path / f"{name}.json")}
            found = merge(recipe(tiny, given, run=run), tmp_path / f"{given is None}-{name}")
            assert found.learned == expected.learned
    with pytest.raises(SurveyError, match="'keep' was"):
        merge(recipe(tiny, other, run={"survey": str(tmp_path / "with.json")}), tmp_path / "out")
