"""agentmerge probe, as a user calls it."""

import json

import pytest


def test_probe_shows_density_unique_shared_rho_and_scale(run, sources):
    ran = run("probe", *sources)
    assert ran.code == 0
    for word in ("density", "unique", "shared", "rho", "scale", "code", "tool", "1,969,088 merged elements"):
        assert word in ran.out


def test_a_saved_survey_lets_merge_skip_its_fold_and_gives_the_same_bytes(run, sources, tmp_path):
    run("probe", *sources, "--json", str(tmp_path / "survey.json"), "--quiet")
    run("merge", *sources, "--out", str(tmp_path / "folded"), "--quiet")
    ran = run("merge", *sources, "--survey", str(tmp_path / "survey.json"), "--out", str(tmp_path / "reused"), "--json")
    assert json.loads(ran.out)["timing"]["folds"] == 0
    folded, reused = (tmp_path / name / "model.safetensors" for name in ("folded", "reused"))
    assert folded.read_bytes() == reused.read_bytes()


def test_probe_prints_json_for_machines(run, sources):
    record = json.loads(run("probe", *sources, "--json", "-").out)
    assert record["survey"]["elements"] == 1_969_088
    assert set(record["survey"]["agents"]) == {"code", "tool"}


def test_a_survey_that_was_there_survives_one_that_can_not_be_written(run, sources, tmp_path, monkeypatch):
    survey = tmp_path / "survey.json"
    run("probe", *sources, "--json", str(survey), "--quiet")
    before = survey.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agentmerge.files.staging.write_file", full)
    ran = run("probe", *sources, "--json", str(survey), "--quiet")
    assert (ran.code, "No space left on device" in ran.err) == (2, True)
    assert survey.read_bytes() == before


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_file_that_cannot_be_written_is_told_before_the_work(run, sources, tmp_path, monkeypatch, option):
    monkeypatch.setattr("agentmerge.api.probe", lambda *_, **__: pytest.fail("it began"))
    ran = run("probe", *sources, option, str(tmp_path / "nowhere" / "file"))
    assert ran.code == 2
    assert "there is no folder" in ran.err
    assert "is a folder" in run("probe", *sources, option, str(tmp_path)).err
