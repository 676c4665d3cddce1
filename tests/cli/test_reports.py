"""agentmerge probe --html and merge --report, as a user calls them."""

import json


def test_probe_writes_a_page_and_prints_its_advice(run, sources, tmp_path):
    ran = run("probe", *sources, "--html", str(tmp_path / "report.html"))
    assert ran.code == 0
    assert "as after RL" in ran.out
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_full_probe_is_saved_and_a_merge_goes_on_from_it(run, sources, tmp_path):
    run("probe", *sources, "--full", "--json", str(tmp_path / "survey.json"), "--quiet")
    findings = json.loads((tmp_path / "survey.json").read_text())["findings"]
    assert {row["agent"] for row in findings["modules"]} == {"code", "tool"}
    ran = run("merge", *sources, "--survey", str(tmp_path / "survey.json"), "--out", str(tmp_path / "out"), "--json")
    assert json.loads(ran.out)["timing"]["folds"] == 0


def test_merge_reports_what_it_kept_and_the_model_is_the_same(run, sources, tmp_path):
    run("merge", *sources, "--out", str(tmp_path / "plain"), "--quiet")
    ran = run("merge", *sources, "--out", str(tmp_path / "told"), "--report", "--json")
    assert set(json.loads(ran.out)["retention"]) == {"code", "tool"}
    plain, told = (tmp_path / name / "model.safetensors" for name in ("plain", "told"))
    assert plain.read_bytes() == told.read_bytes()
    assert (tmp_path / "told" / "report.html").exists()
    assert not (tmp_path / "plain" / "report.html").exists()
    assert "Retention" in run("inspect", str(tmp_path / "told")).out
    assert "Retention" not in run("inspect", str(tmp_path / "plain")).out


def test_a_page_that_can_not_be_written_is_told_calmly(run, sources, tmp_path):
    ran = run("probe", *sources, "--html", str(tmp_path / "no" / "such" / "report.html"))
    assert ran.code == 2
    assert "can't be written" in ran.err


def test_schema_probe_is_schema_survey(run):
    assert run("schema", "probe").out == run("schema", "survey").out
    assert "Findings" in json.loads(run("schema", "probe").out)["$defs"]
