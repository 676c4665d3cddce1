"""agentmerge probe, as a user calls it."""

import json


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
