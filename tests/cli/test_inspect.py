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
    assert "merge_record.json: no such file" in ran.err
