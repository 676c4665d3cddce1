"""What bad input gets: one clear error that says where, what was found and what to do; OUT never appears."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from agentmerge import MergeError, merge, probe
from agentmerge.errors import AlignmentError, DataError, OutputError, RecipeError, SourceError
from agentmerge.testing import Sources, make_agents, random_base, read_checkpoint, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agentmerge.tensors import Array

pytestmark = pytest.mark.usefixtures("unsynced")
MLP = "model.layers.0.mlp.up_proj.weight"
NORM = "model.norm.weight"
METHODS = ["ram", "ram+", "ram+s"]


def refused(recipe: dict[str, Any], out: Path, kind: type[MergeError] = MergeError) -> str:
    """The message of a merge that must fail before OUT appears."""
    before = sorted(out.iterdir()) if out.is_dir() else None
    with pytest.raises(kind) as caught:
        merge(recipe, out)
    assert (sorted(out.iterdir()) if out.is_dir() else None) == before
    message = str(caught.value)
    assert len(message) < 1500
    return message


def nothing_staged(out: Path) -> bool:
    return not (out.parent / f".{out.name}.agentmerge").exists()


def marked_refused(out: Path, message: str) -> bool:
    """The staging folder says why, and holds no weights any more."""
    folder = out.parent / f".{out.name}.agentmerge"
    names = {path.name for path in folder.iterdir()}
    return (folder / ".refused.txt").read_text() == message and names == {".refused.txt", ".journal.jsonl"}


def edit(folder: Path, change: Callable[[dict[str, Array]], object], **options: Any) -> None:
    """Write a checkpoint again with other tensors."""
    tensors = read_checkpoint(folder)
    change(tensors)
    write_checkpoint(folder, tensors, **options)


# told before a byte is written: the sources


@pytest.mark.parametrize("how", ["as it is", "relative", "absolute", "trailing", "symlink", "dots", "file"])
def test_the_same_folder_twice(how: str, tiny: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tiny.agents["code"])
    code = tiny.agents["code"]
    again = {
        "as it is": str(code),
        "relative": os.path.relpath(code),
        "absolute": str(code.resolve()),
        "trailing": f"{code}/",
        "symlink": "link",
        "dots": f"{code}/../{code.name}",
        "file": f"{code}/model.safetensors",
    }
    recipe = tiny.recipe("ram")
    recipe["agents"]["tool"] = again[how]
    assert f"'code' and 'tool' are the same files ({code.resolve()})" in refused(recipe, tmp_path / "out", RecipeError)
    recipe = tiny.recipe("ram")
    recipe["base"] = again[how]
    assert "'base' and 'code' are the same files" in refused(recipe, tmp_path / "out", RecipeError)
    assert nothing_staged(tmp_path / "out")


def test_the_same_files_behind_links_as_in_the_hub_cache(tiny: Sources, tmp_path: Path) -> None:
    other = tmp_path / "snapshot"
    other.mkdir()
    for path in tiny.agents["code"].iterdir():
        (other / path.name).symlink_to(path)
    recipe = tiny.recipe("ram")
    recipe["agents"]["tool"] = str(other)
    assert "'code' and 'tool' are the same files" in refused(recipe, tmp_path / "out", RecipeError)


@pytest.mark.parametrize("who", ["base", "tool"])
def test_a_missing_source_is_named_with_its_role(who: str, tiny: Sources, tmp_path: Path) -> None:
    recipe = tiny.recipe("ram")
    if who == "base":
        recipe["base"] = "no/where"
    else:
        recipe["agents"][who] = "no/where"
    message = refused(recipe, tmp_path / "out", SourceError)
    assert message.startswith("base: " if who == "base" else "agent 'tool': ")
    assert "no/where: no such folder" in message


@pytest.mark.parametrize("cut", [1, 53 * 2, 1000])
def test_a_truncated_agent_is_named(cut: int, tiny: Sources, tmp_path: Path) -> None:
    path = tiny.agents["tool"] / "model.safetensors"
    os.truncate(path, path.stat().st_size - cut)
    message = refused(tiny.recipe("ram"), tmp_path / "out", SourceError)
    assert message.startswith(f"agent 'tool': {path}: truncated: {cut} bytes are missing")
    assert nothing_staged(tmp_path / "out")


def test_a_broken_config_of_the_base_is_named(tiny: Sources, tmp_path: Path) -> None:
    (tiny.base / "config.json").write_text("{")
    assert "config.json: not valid JSON" in refused(tiny.recipe("ram"), tmp_path / "out", SourceError)


@pytest.mark.parametrize("method", ["ram_pluss", {"name": "ram", "recale": 1}, {"name": "ram", "clip": "much"}, None])
def test_a_wrong_method_is_told_before_any_source_is_opened(method: Any, tmp_path: Path) -> None:
    recipe = {"base": "no/where", "agents": {"code": "no/where/2"}, "method": method}
    assert "method" in refused(recipe, tmp_path / "out", RecipeError)


# told before a byte is written: alignment


def test_tensors_that_an_agent_lacks_are_listed(tiny: Sources, tmp_path: Path) -> None:
    shutil.rmtree(tiny.agents["tool"])
    write_checkpoint(tiny.agents["tool"], {NORM: read_checkpoint(tiny.base)[NORM]})
    message = refused(tiny.recipe("ram"), tmp_path / "out", AlignmentError)
    assert "agent 'tool' lacks 4: model.embed_tokens.weight" in message
    assert nothing_staged(tmp_path / "out")


def test_tensors_that_the_base_lacks_are_listed(tiny: Sources, tmp_path: Path) -> None:
    edit(tiny.agents["tool"], lambda tensors: tensors.update(value_head=np.ones(3, np.float32)))
    assert "agent 'tool' has 1 more: value_head" in refused(tiny.recipe("ram"), tmp_path / "out", AlignmentError)


def test_another_shape_is_told_with_both_shapes(tiny: Sources, tmp_path: Path) -> None:
    edit(tiny.agents["tool"], lambda tensors: tensors.update({NORM: tensors[NORM][:-1]}))
    message = refused(tiny.recipe("ram"), tmp_path / "out", AlignmentError)
    assert f"{NORM}: agent 'tool' has shape [52], base has [53]" in message


def test_rules_that_leave_nothing_to_merge_are_told(tiny: Sources, tmp_path: Path) -> None:
    recipe = tiny.recipe("ram+", rules=[{"tensors": "*", "take": "code"}])
    assert "nothing to merge" in refused(recipe, tmp_path / "out", RecipeError)
    with pytest.raises(RecipeError, match="nothing to merge"):
        probe(recipe)


# told before a byte is written: the output


@pytest.mark.parametrize("method", METHODS)
def test_a_folder_with_something_in_it_is_left_alone(method: str, tiny: Sources, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years")
    assert "the folder is not empty (thesis.tex)" in refused(tiny.recipe(method), tmp_path / "out", OutputError)
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years"


def test_a_second_merge_into_the_same_out_is_refused(tiny: Sources, tmp_path: Path) -> None:
    merge(tiny.recipe("ram"), tmp_path / "out")
    assert "the folder is not empty" in refused(tiny.recipe("ram"), tmp_path / "out", OutputError)


@pytest.mark.parametrize("where", ["in/base", "in/base/out", "in/tool", "in/tool/a/b", "in", "."])
def test_out_and_sources_may_not_lie_in_each_other(where: str, tiny: Sources, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tiny.base.parent.rglob("*")}
    with pytest.raises(OutputError, match=r"lies in, or holds, the source of (base|agent '\w+')"):
        merge(tiny.recipe("ram"), tmp_path / where, overwrite=True)
    assert {path: path.stat().st_mtime_ns for path in tiny.base.parent.rglob("*")} == before


def test_out_in_a_source_by_way_of_a_link_is_refused(tiny: Sources, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tiny.base)
    assert "lies in, or holds" in refused(tiny.recipe("ram"), tmp_path / "link" / "out", OutputError)


def test_out_that_is_a_file_or_in_a_file_is_refused(tiny: Sources, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is a file" in refused(tiny.recipe("ram"), tmp_path / "file", OutputError)
    assert "can't be written" in refused(tiny.recipe("ram"), tmp_path / "file" / "out", OutputError)


def test_a_folder_beside_a_source_whose_name_begins_alike_is_fine(tiny: Sources) -> None:
    merge(tiny.recipe("ram"), tiny.base.parent / "base-merged")


def test_no_space_on_disk_is_told_and_leaves_nothing(
    tiny: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    assert "bytes are needed on this disk, 1,000 are free" in refused(tiny.recipe("ram"), tmp_path / "out", OutputError)
    assert nothing_staged(tmp_path / "out")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small tmpfs can't be mounted here: {error}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_disk_that_is_really_full_is_told_and_stays_as_it_was(tmp_path: Path, small_disk: Path) -> None:
    sources = make_agents(tmp_path / "in", base=random_base(0, {"w": (400, 1000)}))
    message = refused(sources.recipe("ram"), small_disk / "out", OutputError)
    assert "bytes are needed on this disk" in message
    assert list(small_disk.iterdir()) == []


def test_a_disk_that_is_full_although_it_claimed_room_is_told(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = make_agents(tmp_path / "in", base=random_base(0, {"w": (400, 1000)}))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    message = refused(sources.recipe("ram"), small_disk / "out", OutputError)
    assert "No space left on device" in message
    assert "Free some space" in message
    assert list(small_disk.iterdir()) == []


def test_a_mounted_out_works_and_is_filled_inside(small_disk: Path, tiny: Sources) -> None:
    merge(tiny.recipe("ram"), small_disk)
    assert {"config.json", "model.safetensors", "merge_record.json"} <= {path.name for path in small_disk.iterdir()}
    assert not [path for path in small_disk.iterdir() if path.name.startswith(".")]


# told as soon as the data shows it


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("bad", "found"), [("nan", "3 NaN and 0 inf"), ("inf", "0 NaN and 3 inf"), ("-inf", "0 NaN and 3 inf")]
)
@pytest.mark.parametrize("who", ["base", "tool"])
def test_nan_and_inf_are_told_with_tensor_agent_and_exact_count(
    method: str, bad: str, found: str, who: str, tiny: Sources, tmp_path: Path
) -> None:
    folder = tiny.base if who == "base" else tiny.agents[who]
    edit(folder, lambda tensors: tensors[MLP].reshape(-1).__setitem__([0, 5000, -1], float(bad)))
    message = refused(tiny.recipe(method, run={"block_size": 4096}), tmp_path / "out", DataError)
    name = "base" if who == "base" else f"agent '{who}'"
    assert f"{MLP}: {name} ({folder}) has {found} of 8777 elements." in message
    assert marked_refused(tmp_path / "out", message)
    with pytest.raises(DataError, match="3"):
        probe(tiny.recipe(method))


def test_several_bad_sources_are_all_told(tiny: Sources, tmp_path: Path) -> None:
    for name in ("code", "memory"):
        edit(tiny.agents[name], lambda tensors: tensors[NORM].__setitem__(7, np.nan))
    message = refused(tiny.recipe("ram"), tmp_path / "out", DataError)
    assert f"{NORM}: agent 'code'" in message
    assert f"{NORM}: agent 'memory'" in message
    assert "tool" not in message


def test_nan_is_told_whichever_block_and_worker_sees_it_first(tiny: Sources, tmp_path: Path) -> None:
    edit(tiny.agents["tool"], lambda tensors: tensors[MLP].fill(np.nan))
    found = {
        refused(tiny.recipe("ram", run={"block_size": b, "workers": w}), tmp_path / "out", DataError)
        for b, w in ((4096, 1), (4096, 4), (10**6, 2))
    }
    assert len(found) == 1


def test_nan_in_a_tensor_that_a_rule_copies_is_told_too(tiny: Sources, tmp_path: Path) -> None:
    edit(tiny.agents["tool"], lambda tensors: tensors[NORM].__setitem__(7, np.nan))
    taken = tiny.recipe("ram+", rules=[{"tensors": "*norm*", "take": "tool"}])
    message = refused(taken, tmp_path / "out", DataError)
    assert f"{NORM}: agent 'tool'" in message
    assert "1 NaN and 0 inf of 53 elements" in message
    merge(tiny.recipe("ram+", rules=[{"tensors": "*norm*", "take": "base"}]), tmp_path / "other")


def test_nan_in_the_base_is_told_where_an_agent_lacks_the_tensor(tiny: Sources, tmp_path: Path) -> None:
    edit(tiny.base, lambda tensors: tensors[NORM].__setitem__(7, np.nan))
    edit(tiny.agents["code"], lambda tensors: tensors.pop(NORM))
    message = refused(tiny.recipe("ram+", inputs={"missing": "base"}), tmp_path / "out", DataError)
    assert f"{NORM}: base" in message
    assert "'code'" not in message


def test_signalling_nans_are_told_as_calmly(tiny: Sources, tmp_path: Path) -> None:
    edit(tiny.agents["tool"], lambda tensors: tensors[NORM].view(np.uint16).__setitem__(7, 0x7F81))
    assert "1 NaN and 0 inf" in refused(tiny.recipe("ram"), tmp_path / "out", DataError)


@pytest.mark.parametrize("method", METHODS)
def test_an_agent_identical_to_the_base_is_named_and_may_be_allowed(method: str, tiny: Sources, tmp_path: Path) -> None:
    edit(tiny.agents["tool"], lambda tensors: tensors.update(read_checkpoint(tiny.base)))
    message = refused(tiny.recipe(method), tmp_path / "out", DataError)
    assert f"agent 'tool' ({tiny.agents['tool']}) is identical to the base" in message
    assert "inputs.unchanged: allow (--unchanged allow)" in message
    assert marked_refused(tmp_path / "out", message)
    record = merge(tiny.recipe(method, inputs={"unchanged": "allow"}), tmp_path / "out")
    assert any("agent 'tool'" in warning and "takes no part" in warning for warning in record.warnings)


def test_an_agent_whose_changes_are_all_below_the_threshold_is_told_as_such(tiny: Sources, tmp_path: Path) -> None:
    message = refused(tiny.recipe({"name": "ram", "threshold": 1.0}), tmp_path / "out", DataError)
    assert "changed no element beyond the threshold" in message


def test_an_unchanged_agent_counts_for_nothing_in_the_others_result(tiny: Sources, tmp_path: Path) -> None:
    two = Sources(tiny.base, {name: tiny.agents[name] for name in ("code", "memory")})
    merge(two.recipe("ram+"), tmp_path / "two")
    edit(tiny.agents["tool"], lambda tensors: tensors.update(read_checkpoint(tiny.base)))
    merge(tiny.recipe("ram+", inputs={"unchanged": "allow"}), tmp_path / "three")
    for name, array in read_checkpoint(tmp_path / "two").items():
        assert array.tobytes() == read_checkpoint(tmp_path / "three")[name].tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_a_number_too_large_for_float16_is_told(method: str, tmp_path: Path) -> None:
    base = random_base(0)
    base[NORM][7] = 70_000
    sources = make_agents(tmp_path / "in", base=base)
    message = refused(sources.recipe(method, output={"dtype": "float16"}), tmp_path / "out", DataError)
    assert f"{NORM}: at least 1 merged elements are too large for F16" in message
    assert marked_refused(tmp_path / "out", message)
    merge(sources.recipe(method), tmp_path / "out")


def test_a_number_too_large_for_float16_in_a_copied_tensor_is_told(tmp_path: Path) -> None:
    base = random_base(0)
    base[NORM][7] = 70_000
    sources = make_agents(tmp_path / "in", base=base)
    recipe = sources.recipe("ram", output={"dtype": "float16"}, rules=[{"tensors": "*norm*", "take": "base"}])
    assert "too large for F16" in refused(recipe, tmp_path / "out", DataError)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_weights_that_lead_beyond_float32_are_told_without_a_warning_of_numpy(
    rounding: str, tiny: Sources, tmp_path: Path
) -> None:
    for weight in (3e38, 1e39):
        recipe = tiny.recipe("ram", output={"rounding": rounding})
        recipe["agents"]["tool"] = {"source": str(tiny.agents["tool"]), "weight": weight}
        if weight > 3.4e38:
            assert "are not finite in float32" in refused(recipe, tmp_path / "out", DataError)
        else:
            merge(recipe, tmp_path / f"out-{rounding}")


def test_agents_of_another_base_are_warned_of(tiny: Sources, tmp_path: Path) -> None:
    for seed, path in enumerate(tiny.agents.values()):
        write_checkpoint(path, random_base(100 + seed))
    record = merge(tiny.recipe("ram+"), tmp_path / "out")
    assert any("is this the right base?" in warning for warning in record.warnings)
    assert any("is this the right base?" in warning for warning in probe(tiny.recipe("ram+")).warnings)


def test_integer_tensors_that_differ_are_copied_from_the_base_and_reported(tmp_path: Path) -> None:
    base = {**random_base(0), "ids": np.arange(9), "mask": np.zeros(4, np.bool_), "same": np.arange(3)}
    sources = make_agents(tmp_path / "in", base=base)
    edit(sources.agents["tool"], lambda tensors: tensors["ids"].__setitem__([1, 2], 77))
    edit(sources.agents["code"], lambda tensors: tensors["mask"].__setitem__(0, True))
    record = merge(sources.recipe("ram"), tmp_path / "out")
    reasons = {tensor.name: tensor.reason for tensor in record.tensors.copied}
    assert reasons["ids"] == "I64 tensors are not merged; it differs in 'tool' (2 elements)"
    assert reasons["mask"] == "BOOL tensors are not merged; it differs in 'code' (1 elements)"
    assert reasons["same"] == "I64 tensors are not merged"
    assert any("copied although agents differ in them" in w and "ids, mask" in w for w in record.warnings)
    found = read_checkpoint(tmp_path / "out")
    np.testing.assert_array_equal(found["ids"], np.arange(9))
    assert not found["mask"].any()


def test_float8_weights_without_a_scale_are_refused(tmp_path: Path) -> None:
    base = {**random_base(0), "w8": np.ones((4, 4), ml_dtypes.float8_e4m3fn)}
    sources = make_agents(tmp_path / "in", base=base)
    message = refused(sources.recipe("ram"), tmp_path / "out", SourceError)
    assert "w8 is F8_E4M3 without a scale tensor" in message
    assert "save it in bfloat16" in message


def test_a_source_that_changes_while_it_is_read_is_told(
    tiny: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentmerge.engine import merge as engine

    checked = engine.check_agents

    def touch_then_check(*arguments: Any) -> Any:
        (tiny.agents["tool"] / "model.safetensors").touch()
        return checked(*arguments)

    monkeypatch.setattr(engine, "check_agents", touch_then_check)
    message = refused(tiny.recipe("ram+"), tmp_path / "out", SourceError)
    assert "changed while in use" in message
    assert marked_refused(tmp_path / "out", message)


def test_refused_work_starts_over_and_ends_like_any_other(tiny: Sources, tmp_path: Path) -> None:
    merge(tiny.recipe("ram+"), tmp_path / "expected")
    tensors = read_checkpoint(tiny.agents["tool"])
    edit(tiny.agents["tool"], lambda found: found[NORM].__setitem__(7, np.nan))
    refused(tiny.recipe("ram+"), tmp_path / "out", DataError)
    refused(tiny.recipe("ram+"), tmp_path / "out", DataError)
    write_checkpoint(tiny.agents["tool"], tensors)
    merge(tiny.recipe("ram+"), tmp_path / "out")
    for name in ("model.safetensors", "config.json", "README.md"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "expected" / name).read_bytes()
    assert nothing_staged(tmp_path / "out")
