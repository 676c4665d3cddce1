"""Who is who, what is a skill, and what a comparison's rows hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.compare.roles import entries_of
from agentmerge.eval.suite import Column

from .conftest import bits, merge

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agentmerge.eval.compare.rows import Comparison

    from .conftest import Made

    Compare = Callable[..., Comparison]


def roles(*folders: Path, **options: object) -> dict[str, str]:
    return {entry.name: entry.role for entry in entries_of(list(folders), **options)}  # type: ignore[arg-type]


def test_a_merge_tells_who_its_base_and_agents_are(made: Callable[..., Made], tmp_path: Path) -> None:
    facts = {**merge(coder="hub/Coder-7B", tool="models/tooler"), "base": "hub/Instruct"}
    for name, path in (
        ("run1", "/models/Instruct"),
        ("run2", "/cache/Coder-7B"),
        ("run3", None),
        ("run4", "/x/tooler"),
    ):
        made(name, path=path).suite("gsm8k", "maths", {"": [1, 0]})
    made("ram", merge=facts).suite("gsm8k", "maths", {"": [1, 0]})
    found = roles(*(tmp_path / name for name in ("ram", "run4", "run3", "run2", "run1")))
    assert found == {"base": "base", "tool": "agent", "run3": "agent", "coder": "agent", "ram": "merged"}
    assert next(iter(found)) == "base"
    assert list(found)[-1] == "ram"


def test_a_folder_called_base_is_the_base_unless_another_is_named(made: Callable[..., Made], tmp_path: Path) -> None:
    for name in ("base", "other"):
        made(name).suite("gsm8k", "maths", {"": [1, 0]})
    assert roles(tmp_path / "base", tmp_path / "other") == {"base": "base", "other": "agent"}
    with pytest.raises(EvalError, match="'base' is the name of"):
        roles(tmp_path / "base", base=tmp_path / "other")
    found = roles(base=tmp_path / "other", agents={"it": tmp_path / "base"}, merged={"m": tmp_path / "other"})
    assert found == {"base": "base", "it": "agent", "m": "merged"}


def test_nothing_to_compare_is_told() -> None:
    with pytest.raises(EvalError, match="nothing to compare"):
        entries_of([])


def categories(made: Callable[..., Made], name: str, **facts: object) -> Made:
    """BFCL with a mean of two categories, and each of them."""
    columns = [
        Column("all", "right", "all", combine="groups"),
        Column("simple", "right", "simple", ("simple",)),
        Column("parallel", "right", "parallel", ("parallel",)),
    ]
    return made(name, **facts).suite("bfcl", "tool", {"simple": [1, 1, 1, 0], "parallel": [0, 1]}, columns)


def test_a_category_does_not_count_twice_in_the_mean(made: Callable[..., Made], comparison: Compare) -> None:
    categories(made, "base").suite("gsm8k", "maths", {"": [1, 0]})
    found = comparison("base")
    assert {unit.id for unit in found.units if unit.part} == {"bfcl.simple", "bfcl.parallel"}
    assert found.cell("base", "skill/tool").mean == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert found.cell("base", "mean").mean == pytest.approx((0.625 + 0.5) / 2)


def test_a_column_of_another_metric_in_another_row_is_refused(
    made: Callable[..., Made], comparison: Compare, tmp_path: Path
) -> None:
    both = [{"right": [1, 1], "strict": [0, 1]}, {"right": [1, 1], "strict": [1, 1]}]
    for name, metric in (("base", "right"), ("tool", "strict")):
        model = made(name).suite("memory", "memory", {"": both}, [Column("memory", metric, "memory")])
        model.suite("gsm8k", "maths", {"": [1, 0]})
    with pytest.raises(EvalError, match=r"memory\.memory: 'base' and 'tool'.*metric is 'right' and 'strict'") as told:
        comparison("base", "tool")
    assert told.value.problems[0].where.path == str(tmp_path / "tool")
    assert comparison("base", "tool", suites=["gsm8k"]).cell("tool", "mean").mean == 0.5


def test_another_reading_of_the_same_answers_does_not_count_unless_a_skill_names_it(
    made: Callable[..., Made], comparison: Compare
) -> None:
    items = [{"right": [1.0, 1.0], "loose": [1.0, 1.0]}, {"right": [0.0, 1.0], "loose": [1.0, 1.0]}]
    columns = [Column("gsm8k", "right", "GSM8K"), Column("loose", "loose", "GSM8K, loosely", counts=False)]
    made("base").suite("gsm8k", "maths", {"": items}, columns)
    assert comparison("base").cell("base", "mean").mean == 0.5
    assert comparison("base").cell("base", "gsm8k.loose").mean == 1.0
    assert comparison("base", skills={"easy": ["gsm8k.loose"]}).cell("base", "mean").mean == 0.75


def test_columns_that_are_made_a_skill_count_for_themselves(made: Callable[..., Made], comparison: Compare) -> None:
    categories(made, "base")
    found = comparison("base", skills={"easy": ["bfcl.simple"]})
    assert [unit.id for unit in found.skills()] == ["skill/easy"], "what holds a part of it counts no more"
    assert found.cell("base", "mean").mean == 0.75


def test_groups_of_own_prompts_are_skills(made: Callable[..., Made], comparison: Compare) -> None:
    columns = [
        Column("jsonl", "right", "own prompts"),
        Column("a", "right", "alpha", ("alpha",)),
        Column("b", "right", "beta", ("beta",)),
    ]
    made("base").suite("jsonl", "own", {"alpha": [1, 1], "beta": [0, 0, 0, 1]}, columns)
    found = comparison("base")
    assert [unit.skill for unit in found.skills()] == ["alpha", "beta"]
    assert found.cell("base", "mean").mean == (1 + 0.25) / 2


def test_the_specialist_goes_by_name_else_by_score(made: Callable[..., Made], comparison: Compare) -> None:
    for name, tool, maths in (("base", 3, 3), ("mathematician", 2, 4), ("other", 6, 6)):
        made(name).suite("bfcl", "tool", {"": bits(tool, 10)}).suite("gsm8k", "maths", {"": bits(maths, 10)})
    skills = {model.name: model.skills for model in comparison("base", "mathematician", "other").models}
    assert skills == {"base": [], "mathematician": ["maths"], "other": ["tool"]}
    given = comparison("base", "mathematician", "other", specialists={"tool": "mathematician"})
    assert given.models[1].skills == ["tool", "maths"]
    with pytest.raises(EvalError, match=r"no skill 'tools'\. Did you mean 'tool'"):
        comparison("base", "other", specialists={"tools": "other"})


def test_best_second_best_and_better_than_the_specialist(made: Callable[..., Made], comparison: Compare) -> None:
    for name, right in (("base", 2), ("tool", 6)):
        made(name).suite("bfcl", "tool", {"": bits(right, 10)})
    for name, right in (("a", 5), ("b", 7), ("c", 5), ("d", 4)):
        made(name, merge=merge()).suite("bfcl", "tool", {"": bits(right, 10)})
    found = comparison("base", "tool", "a", "b", "c", "d")
    cells = {model.name: found.cell(model.name, "skill/tool") for model in found.models}
    assert {name: cell.rank for name, cell in cells.items()} == {
        "base": None, "tool": None, "a": 2, "b": 1, "c": 2, "d": None,
    }  # fmt: skip
    assert {name: cell.beats for name, cell in cells.items()} == {
        "base": None, "tool": None, "a": False, "b": True, "c": False, "d": False,
    }  # fmt: skip


def test_differences_are_to_the_base_or_to_whom_one_wants(made: Callable[..., Made], comparison: Compare) -> None:
    for name, right in (("base", 2), ("tool", 6), ("code", 3)):
        made(name).suite("bfcl", "tool", {"": bits(right, 10)})
    found = comparison("base", "tool", "code")
    by_row = {one.row: one.value for one in found.differences if one.unit == "mean"}
    assert by_row == pytest.approx({"tool": 0.4, "code": 0.1})
    turned = comparison("base", "tool", "code", against="tool")
    by_row = {one.row: one.value for one in turned.differences if one.unit == "mean"}
    assert by_row == pytest.approx({"base": -0.4, "code": -0.3})
    for one in found.differences:
        assert one.low <= one.value <= one.high
    with pytest.raises(EvalError, match=r"no row 'tol'\. Did you mean 'tool'"):
        comparison("base", "tool", against="tol")


def test_a_missing_suite_leaves_no_mean_and_is_told(made: Callable[..., Made], comparison: Compare) -> None:
    for name in ("base", "tool"):
        made(name).suite("bfcl", "tool", {"": bits(3, 10)})
    made("both").suite("bfcl", "tool", {"": bits(5, 10)}).suite("gsm8k", "maths", {"": bits(1, 4)})
    found = comparison("base", "tool", "both")
    assert found.cell("tool", "mean").mean is None
    assert found.cell("tool", "gsm8k.gsm8k").mean is None
    assert found.cell("tool", "skill/tool").mean == 0.3
    assert found.cell("both", "mean").mean == (0.5 + 0.25) / 2
    assert "'tool' lacks gsm8k" in found.notes[1]
    alike = comparison("base", "tool", "both", suites=["bfcl"])
    assert alike.cell("tool", "mean").mean == 0.3
    assert alike.notes == []


def test_other_settings_are_told(made: Callable[..., Made], comparison: Compare) -> None:
    for name, shots in (("base", 5), ("tool", 0)):
        made(name).suite("gsm8k", "maths", {"": bits(3, 10)}, settings={"shots": shots, "chat": True})
    assert comparison("base", "tool").notes == [
        "gsm8k was asked with different settings (shots): scores may differ by that."
    ]


def test_other_generators_and_harnesses_are_told_but_not_other_servers(
    made: Callable[..., Made], comparison: Compare
) -> None:
    for name, dtype, version in (("base", "float32", "1"), ("tool", "bfloat16", "2")):
        model = made(name)
        model.record["model"]["generator"] = {"kind": "hf", "dtype": dtype, "server": f"http://{name}", "model": name}
        model.record["versions"] = {"lm-eval": version, "agentmerge": version}
        model.suite("gsm8k", "maths", {"": bits(3, 10)})
    assert comparison("base", "tool").notes == [
        "Answers were generated in different ways (dtype float32 and bfloat16): scores may differ by that.",
        "Answers were scored by different versions (lm-eval 1 and 2): scores may differ by that.",
    ]


def test_a_comparison_loads_as_a_table_and_says_the_same_again(made: Callable[..., Made], comparison: Compare) -> None:
    for name, right in (("base", 2), ("tool", 6)):
        made(name).suite("bfcl", "tool", {"": bits(right, 10)})
    found = comparison("base", "tool")
    rows = found.rows()
    assert [row["mean"] for row in rows if row["unit"] == "mean"] == [0.2, 0.6]
    assert {row["role"] for row in rows} == {"base", "agent"}
    assert comparison("base", "tool") == found
