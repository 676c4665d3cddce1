"""A record says what was done, replays it, and is read back whole or refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge import MergeRecord, ProbeRecord, Recipe, check, merge, probe
from agentmerge.errors import SurveyError
from agentmerge.testing import assert_same_tensors, read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.testing import Sources

pytestmark = pytest.mark.usefixtures("unsynced")
DESIGN = {
    "recipe": {"base", "agents", "method", "rules", "inputs", "output", "seed", "run"},
    "versions": {"agentmerge", "python", "numpy", "numba", "ml-dtypes"},
    "sources": {"base", "code", "tool", "memory"},
    "survey": {"elements", "threshold", "agents"},
    "rounding": {"code", "tool", "memory"},
    "tensors": {"merged", "copied"},
    "output": {"dtype", "rounding", "shards", "bytes"},
    "timing": {"fold_seconds", "map_seconds", "folds", "bytes_read"},
}


@pytest.fixture
def out(tiny: Sources, tmp_path: Path) -> Path:
    merge(tiny.recipe("ram+"), tmp_path / "out")
    return tmp_path / "out"


def test_the_record_has_every_field_that_the_design_lists(out: Path) -> None:
    data: dict[str, Any] = json.loads((out / "merge_record.json").read_text())
    for section, fields in DESIGN.items():
        assert fields <= data[section].keys(), section
    for agent in data["survey"]["agents"].values():
        assert agent.keys() == {
            *("changed", "density", "unique", "shared", "overlap_unique_ratio", "scale", "changed_by_exactly"),
            "storage_rounding",
        }
        assert agent["changed"] == agent["unique"] + agent["shared"] == sum(agent["changed_by_exactly"])
        assert agent["density"] == agent["changed"] / data["survey"]["elements"]
    for shares in data["rounding"].values():
        assert shares.keys() == {"changed_lost", "below_threshold", "rescale_survived"}
        assert all(0 <= share <= 1 for share in shares.values())
    for source in data["sources"].values():
        assert {"source", "files"} <= source.keys()
        assert {"name", "size", "mtime_ns", "header_sha256"} <= source["files"][0].keys()


def test_the_returned_record_is_the_one_on_disk(tiny: Sources, tmp_path: Path) -> None:
    record = merge(tiny.recipe("ram+s", seed=7), tmp_path / "out")
    assert MergeRecord.load(tmp_path / "out") == record
    assert (tmp_path / "out" / "merge_record.json").read_bytes() == record.dump()


def test_the_recorded_recipe_replays_the_merge(out: Path, tmp_path: Path) -> None:
    recipe = Recipe.parse(MergeRecord.load(out).recipe)
    again = merge(recipe, tmp_path / "again")
    assert_same_tensors(read_checkpoint(tmp_path / "again"), read_checkpoint(out))
    first = MergeRecord.load(out)
    assert again.model_dump(exclude={"timing"}) == first.model_dump(exclude={"timing"})


def test_a_record_is_written_in_the_same_form_as_by_0_1_0(out: Path) -> None:
    text = (out / "merge_record.json").read_bytes()
    assert list(json.loads(text)["timing"]) == ["fold_seconds", "map_seconds", "folds", "outputs", "bytes_read"]
    assert MergeRecord.load(out).dump() == text


def test_a_probe_is_saved_and_read_back_the_same(tiny: Sources, tmp_path: Path) -> None:
    seen = probe(tiny.recipe("ram+"))
    seen.save(tmp_path / "survey.json")
    assert ProbeRecord.load(tmp_path / "survey.json") == seen


def test_probe_and_merge_say_the_same_of_the_agents(tiny: Sources, tmp_path: Path) -> None:
    for method in ("ram", "ram+", "ram+s", {"name": "ram+", "scope": "tensor"}):
        recipe = tiny.recipe(method)
        assert probe(recipe).survey == merge(recipe, tmp_path / str(method)).survey


def test_an_infinite_ratio_is_null_in_json_that_any_reader_takes(tiny: Sources, tmp_path: Path) -> None:
    merge(tiny.recipe("ram+", rules=[{"tensors": "*", "threshold": 1e-5}]), tmp_path / "out")

    def no_constant(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    json.loads((tmp_path / "out" / "merge_record.json").read_text(), parse_constant=no_constant)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "not written by agentmerge, as it holds no merge_record.json"),
        (b"", "can't be read as a MergeRecord"),
        (b"[]", "not a MergeRecord"),
        (b'{"recipe": 1}', "not a MergeRecord: recipe"),
        (b"\xff\xfe", "can't be read as a MergeRecord"),
        (b"[" * 100_000, "can't be read as a MergeRecord"),
    ],
    ids=str,
)
def test_what_is_no_record_is_refused_by_name(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "merge_record.json").write_bytes(content)
    with pytest.raises(SurveyError) as caught:
        MergeRecord.load(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_record_is_a_line_at_a_prompt_and_tables_in_a_notebook(tiny: Sources, tmp_path: Path) -> None:
    probed = probe(tiny.recipe("ram+"), full=True)
    merged = merge(tiny.recipe("ram+"), tmp_path / "out", full=True)
    for record in (probed, merged, probed.findings, merged.tensors, probed.survey, check(tiny.recipe("ram+"))):
        assert len(repr(record)) < 1000
        assert "\n" not in repr(record)
        assert repr(record).startswith(type(record).__name__)
        html = record._repr_html_()
        assert html.count("<table>") == html.count("</table>") > 0
        assert len(html) < 60_000
    assert f"{probed.survey.agents['code'].changed:,}" in probed._repr_html_()


def test_what_a_record_shows_in_a_notebook_is_escaped(tiny: Sources) -> None:
    record = probe(tiny.recipe("ram+")).model_copy(update={"warnings": ["<script>alert(1)</script>"]})
    assert "<script>" not in record._repr_html_()
    assert "&lt;script&gt;" in record._repr_html_()


def test_dir_of_a_record_has_its_own_names_alone(tiny: Sources, tmp_path: Path) -> None:
    merged = merge(tiny.recipe("ram+"), tmp_path / "out")
    assert set(dir(merged)) == set(MergeRecord.model_fields) | {"load", "dump", "rows"}
    assert set(dir(probe(tiny.recipe("ram+")))) == set(ProbeRecord.model_fields) | {"load", "save", "rows"}


def test_a_record_has_a_row_per_agent_for_a_table(tiny: Sources, tmp_path: Path) -> None:
    merged = merge(tiny.recipe("ram+"), tmp_path / "out", full=True)
    rows = {row["agent"]: row for row in merged.rows()}
    assert set(rows) == set(tiny.agents)
    assert rows["code"]["changed"] == merged.survey.agents["code"].changed
    assert rows["code"]["rescale_survived"] == merged.rounding["code"].rescale_survived
    assert merged.retention is not None
    assert rows["code"]["retention_unique"] == merged.retention["code"].unique
    assert probe(tiny.recipe("ram+")).rows()[0]["agent"] == "code"
