"""agentmerge inspect, as a user calls it."""

import json


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
