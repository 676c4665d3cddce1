"""agentmerge inspect, as a user calls it."""

import json
import shutil

import pytest

import agentmerge
from agentmerge.record import MergeRecord
from agentmerge.testing import read_checkpoint


def test_inspect_reads_back_sources_overlap_and_rounding(run, sources, tmp_path):
    run("merge", *sources, "--out", str(tmp_path / "out"), "--quiet")
    ran = run("inspect", str(tmp_path / "out"))
    assert ran.code == 0
    for word in ("Sources", "Rounding", "Method ram_plus", "rescale 0.1", "50 tensors merged", "Versions"):
        assert word in ran.out
    assert json.loads(run("inspect", str(tmp_path / "out"), "--json").out)["tensors"]["merged"] == 50


def test_a_folder_without_a_record_is_told(run, tmp_path):
    ran = run("inspect", str(tmp_path))
    assert ran.code == 2
    assert f"{tmp_path}: not written by agentmerge" in ran.err


def test_a_folder_that_is_not_there_and_a_file_are_told(run, tmp_path):
    assert "no such folder" in run("inspect", str(tmp_path / "none")).err
    (tmp_path / "file").touch()
    assert "is a file, expected a folder that agentmerge wrote" in run("inspect", str(tmp_path / "file")).err


def test_a_folder_of_a_sweep_names_the_merges_in_it(run, sources, tmp_path):
    run("merge", *sources, "--out", str(tmp_path / "all"), "--sweep", "clip=1,2", "--quiet")
    ran = run("inspect", str(tmp_path / "all"))
    assert (ran.code, "It holds merges: clip=1, clip=2." in ran.err) == (2, True)


@pytest.fixture(scope="module")
def packed(agents, tmp_path_factory):
    """DIR/code.safetensors, DIR/tool.safetensors."""
    folder = tmp_path_factory.mktemp("packed")
    for name in ("code", "tool"):
        agentmerge.pack(agents / "base", agents / name, folder / f"{name}.safetensors")
    return folder


def test_a_packed_delta_tells_its_base_and_what_it_changes(run, agents, packed):
    delta = packed / "code.safetensors"
    found = json.loads(run("inspect", str(delta), "--json").out)
    base, code = read_checkpoint(agents / "base"), read_checkpoint(agents / "code")
    expected = {name: int((base[name].view("u2") != code[name].view("u2")).sum()) for name in code}
    assert {tensor["name"]: tensor["changed"] for tensor in found["tensors"]} == expected
    changed, elements = sum(expected.values()), sum(array.size for array in code.values())
    assert (found["changed"], found["elements"], found["density"]) == (changed, elements, changed / elements)
    assert (found["version"], found["nbytes"], found["base"]) == (1, delta.stat().st_size, "base")
    assert sum(form["nbytes"] for form in found["forms"].values()) == sum(t["nbytes"] for t in found["tensors"])
    assert (found["over"], found["compared"], found["commit"], found["merge"]) == (None, None, None, None)
    said = run("inspect", str(delta)).out
    assert f"{changed:,} of {elements:,} elements differ ({changed / elements:.2%})" in said
    assert f"base: base, fingerprint {found['base_print']}" in said
    assert "the 20 of 50 that change most" in said


def test_the_fingerprints_of_a_packed_delta_are_those_that_a_probe_reads(run, sources, packed):
    seen = agentmerge.probe(
        {"base": sources[1], "agents": dict(one.split("=") for one in sources[3::2]), "method": "ram"}
    )
    prints = seen.answers["Integrity {}"]["total"]["fingerprint"]
    told = [json.loads(run("inspect", str(packed / f"{name}.safetensors"), "--json").out) for name in ("code", "tool")]
    assert [told[0]["base_print"], *(one["agent_print"] for one in told)] == prints
    assert told[1]["base_print"] == told[0]["base_print"]


def test_a_packed_delta_is_compared_with_a_base_that_is_given(run, agents, packed):
    delta = str(packed / "code.safetensors")
    ran = run("inspect", delta, "--base", f"{agents}/base")
    assert f"over {agents}/base: it fits, by its tensors and a sample of their numbers" in ran.out
    ran = run("inspect", delta, "--base", f"{agents}/tool")
    assert (ran.code, "lies over another base than" in ran.err) == (2, True)
    ran = run("inspect", str(agents / "code"), "--base", f"{agents}/base")
    assert (ran.code, f"{agents}/code: no packed delta" in ran.err) == (2, True)


def test_of_several_packed_deltas_one_is_to_be_named(run, packed):
    ran = run("inspect", str(packed))
    assert (ran.code, f"{packed}: 2 packed deltas" in ran.err) == (2, True)


def test_a_patch_of_a_merge_tells_what_the_merge_did(run, sources, tmp_path):
    patch = str(tmp_path / "p.safetensors")
    run("merge", *sources, "--out", str(tmp_path / "out"), "--patch", patch, "--quiet")
    ran = run("inspect", patch)
    assert "It was packed of this merge:" in ran.out
    assert "Method ram_plus" in ran.out
    merged = MergeRecord.load(tmp_path / "out").model_dump(mode="json")
    assert json.loads(run("inspect", patch, "--json").out)["merge"] == merged


def test_a_merge_is_shown_though_a_delta_lies_in_its_folder(run, sources, packed, tmp_path):
    assert run("merge", *sources, "--out", str(tmp_path / "out")).code == 0
    shutil.copy(packed / "code.safetensors", tmp_path / "out")
    assert "Method ram_plus" in run("inspect", str(tmp_path / "out")).out


def test_a_delta_that_keeps_a_foreign_record_is_shown(run, agents, tmp_path):
    shutil.copytree(agents / "code", tmp_path / "code")
    (tmp_path / "code" / "merge_record.json").write_text("{}")
    agentmerge.pack(agents / "base", tmp_path / "code", tmp_path / "d.safetensors")
    ran = run("inspect", str(tmp_path / "d.safetensors"))
    assert (ran.code, "a packed delta of version" in ran.out) == (0, True)


def test_a_name_that_no_file_can_have_is_told(run):
    ran = run("inspect", "x" * 5000)
    assert ran.code == 2
    assert "Traceback" not in ran.err
