"""agentmerge merge, as a user calls it."""

import json
import re
import shutil

import pytest
import yaml

from agentmerge.record import MergeRecord
from agentmerge.values import format_flop


def test_merge_writes_a_checkpoint_and_says_what_it_did(run, sources, tmp_path):
    ran = run("merge", *sources, "--out", str(tmp_path / "out"))
    assert ran.code == 0
    assert "rho" in ran.out
    assert "Merged code, tool" in ran.out
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_the_default_method_is_the_papers(run, sources, tmp_path):
    run("merge", *sources, "--out", str(tmp_path / "out"))
    method = MergeRecord.load(tmp_path / "out").recipe["method"]
    paper = {"name": "ram_plus", "threshold": 1e-5, "rescale": 0.1, "clip": 2.0, "curve": "linear", "scope": "model"}
    off = {"shared": "mean", "shared_power": 1.0, "bound": None, "retention": 1.0, "top": None, "top_scope": "model"}
    assert method == paper | off


def test_options_reach_the_recipe(run, sources, tmp_path):
    ran = run(
        *("merge", *sources, "--out", str(tmp_path / "out"), "--method", "ram+s", "--set", "rescale=0.3"),
        *("--dtype", "float32", "--rounding", "stochastic", "--seed", "7", "--shard-size", "1MB"),
        *("--workers", "1", "--block-size", "64KB", "--missing", "base", "--extra", "ignore", "--json"),
    )
    recipe = json.loads(ran.out)["recipe"]
    assert (recipe["method"]["name"], recipe["method"]["rescale"]) == ("ram_plus_soft", 0.3)
    assert recipe["output"] == {"dtype": "float32", "rounding": "stochastic", "shard_size": 1_000_000}
    assert (recipe["run"]["workers"], recipe["run"]["block_size"], recipe["seed"]) == (1, 64_000, 7)
    assert (recipe["inputs"]["missing"], recipe["inputs"]["extra"]) == ("base", "ignore")


def test_a_recipe_file_does_what_the_options_do(run, sources, agents, tmp_path):
    recipe = {
        "base": f"{agents}/base",
        "agents": {"tool": f"{agents}/tool", "code": f"{agents}/code"},
        "method": {"name": "ram_plus", "rescale": 0.2},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert run("merge", str(tmp_path / "recipe.yaml"), "--out", str(tmp_path / "a"), "--quiet").code == 0
    run("merge", *sources, "--set", "rescale=0.2", "--out", str(tmp_path / "b"), "--quiet")
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_options_beside_a_recipe_file_win(run, agents, tmp_path):
    recipe = {"base": f"{agents}/base", "agents": {"code": f"{agents}/code"}, "method": "ram_plus"}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    run("merge", str(tmp_path / "recipe.yaml"), "--set", "clip=0.5", "--out", str(tmp_path / "out"))
    method = MergeRecord.load(tmp_path / "out").recipe["method"]
    assert (method["clip"], method["rescale"]) == (0.5, 0.1)


def test_a_dry_run_tells_tensors_bytes_memory_and_disk_and_writes_nothing(run, sources, tmp_path):
    ran = run("merge", *sources, "--out", str(tmp_path / "out"), "--dry-run")
    assert ran.code == 0
    for word in ("50 merged (1,969,088 elements)", "read", "write", "disk", "memory", "free"):
        assert word in ran.out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_for_machines_is_an_object(run, sources, tmp_path):
    facts = json.loads(run("merge", *sources, "--out", str(tmp_path / "out"), "--dry-run", "--json", "--quiet").out)
    assert facts["tensors"] == {"merged": 50, "copied": 0}
    assert (facts["elements"], facts["shards"], facts["method"]["name"]) == (1_969_088, 1, "ram_plus")
    assert facts["agents"]["code"]["weight"] == 1.0
    assert facts["write_bytes"] <= facts["read_bytes"]
    assert facts["disk_bytes"] == facts["write_bytes"] + facts["draft_bytes"]
    assert (facts["flop"], facts["seconds"], facts["devices"]) == (0.0, 0.0, [])


def test_a_dry_run_for_machines_has_the_arithmetic_of_one_for_people(run, sources, tmp_path, monkeypatch):
    monkeypatch.setattr("agentmerge.engine.estimate.speed", lambda device, precision: 1e10)
    monkeypatch.setattr("agentmerge.engine.estimate.MOMENT", 0.0)
    words = ["merge", *sources, "--out", str(tmp_path / "out"), "--method", "tsv_m", "--set", "device=cpu", "--dry-run"]
    facts, shown = json.loads(run(*words, "--json").out), run(*words).out
    assert facts["devices"] == ["cpu"]
    assert facts["flop"] > 0
    assert facts["seconds"] == pytest.approx(facts["flop"] / 1e10)
    assert f"cost    {format_flop(facts['flop'])} on CPU, about {facts['seconds']:.1f} seconds" in shown


def test_quiet_prints_nothing(run, sources, tmp_path):
    ran = run("merge", *sources, "--out", str(tmp_path / "out"), "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_a_taken_out_is_refused_with_exit_2_and_overwrite_replaces_it(run, sources, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("mine")
    ran = run("merge", *sources, "--out", str(out))
    assert ran.code == 2
    assert "OutputError" in ran.err
    assert "--overwrite" in ran.err
    assert "Traceback" not in ran.err
    assert (out / "precious").read_text() == "mine"
    assert run("merge", *sources, "--out", str(out), "--overwrite").code == 0
    assert not (out / "precious").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_the_same_command_again_is_already_complete_and_writes_nothing(run, sources, tmp_path):
    words = ["merge", *sources, "--out", str(tmp_path / "out")]
    first = run(*words, "--json")
    before = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in (tmp_path / "out").iterdir()}
    told = f"Already complete: {tmp_path}/out is this merge of these sources. --overwrite makes it anew.\n"
    again = run(*words, "--workers", "1")
    assert (again.code, again.out, again.err) == (0, told, first.err)
    assert run(*words, "--json").out == first.out
    dry = run(*words, "--dry-run")
    assert (dry.code, dry.out.endswith(told)) == (0, True)
    assert before == {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in (tmp_path / "out").iterdir()}
    assert "Merged code, tool" in run(*words, "--overwrite").out


@pytest.mark.parametrize("what", ["recipe", "source", "config", "weights", "record"])
def test_another_merge_or_one_that_was_changed_since_is_not_taken_for_it(what, run, agents, tmp_path):
    shutil.copytree(agents, tmp_path, dirs_exist_ok=True)
    out, more = tmp_path / "out", []
    words = ["merge", "--base", f"{tmp_path}/base", "--agent", f"code={tmp_path}/code", "--out", str(out)]
    assert run(*words).code == 0
    if what == "recipe":
        more = ["--set", "rescale=0.3"]
    elif what == "source":
        shutil.copy(tmp_path / "tool" / "model.safetensors", tmp_path / "code" / "model.safetensors")
    elif what == "config":
        path = tmp_path / "base" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "note": 1}))
    elif what == "weights":
        (out / "model.safetensors").unlink()
    else:
        (out / "merge_record.json").write_text("{}")
    for dry in ([], ["--dry-run"]):
        ran = run(*words, *more, *dry)
        assert (ran.code, "the folder is not empty" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--method", "ram_pluss"), "Did you mean 'ram_plus'?"),
        (("--set", "rescal=1"), "method.rescal: unknown field. Did you mean 'rescale'?"),
        (("--set", "rescale=-1"), "method.rescale"),
        (("--set", "rescale=much"), "method.rescale"),
        (("--set", "rescale"), "expected FIELD=VALUE"),
        (("--dtype", "bf17"), "output.dtype"),
        (("--shard-size", "5 bananas"), "output.shard_size"),
        (("--workers", "0"), "run.workers"),
        (("--agent", "code=/nowhere"), "'code' is given twice"),
        (("--agent", "other=/nowhere/at/all"), "agent 'other': '/nowhere/at/all'"),
        (("--agent", "bad name=x"), "agents.bad name"),
        (("--tokenizer-from", "cod"), "Did you mean 'code'?"),
    ],
)
def test_a_wrong_option_is_one_calm_message_with_its_path(run, sources, tmp_path, args, said):
    ran = run("merge", *sources, *args, "--out", str(tmp_path / "out"))
    assert ran.code == 2
    assert said in ran.err
    assert "Traceback" not in ran.err
    assert list(tmp_path.iterdir()) == []


def test_an_option_beside_a_section_that_is_none_is_told_calmly(run, agents, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"base: {agents}/base\nagents: {{code: {agents}/code}}\noutput: float32\n")
    ran = run("merge", str(recipe), "--out", str(tmp_path / "out"), "--rounding", "nearest")
    assert ran.code == 2
    assert "output: " in ran.err


def test_without_inputs_it_says_what_is_needed(run, tmp_path):
    ran = run("merge", "--out", str(tmp_path / "out"))
    assert ran.code == 2
    assert "--base SOURCE and --agent NAME=SOURCE" in ran.err


def test_a_sweep_writes_a_folder_per_value_equal_to_merging_each_alone(run, sources, tmp_path):
    ran = run("merge", *sources, "--out", str(tmp_path / "all"), "--sweep", "rescale=0,0.1,1.5", "--dtype", "float32")
    assert ran.code == 0
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["rescale=0", "rescale=0.1", "rescale=1.5"]
    for value in ("0", "0.1", "1.5"):
        out = tmp_path / value
        run("merge", *sources, "--out", str(out), "--set", f"rescale={value}", "--dtype", "float32", "--quiet")
        swept = tmp_path / "all" / f"rescale={value}"
        assert (swept / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
        assert MergeRecord.load(swept).rounding == MergeRecord.load(out).rounding
        assert MergeRecord.load(swept).survey == MergeRecord.load(out).survey


def test_a_sweep_for_machines_is_one_list_with_the_folder_of_each(run, sources, tmp_path):
    out = tmp_path / "all"
    records = json.loads(run("merge", *sources, "--out", str(out), "--sweep", "clip=1,2", "--json").out)
    assert [one["recipe"]["method"]["clip"] for one in records] == [1, 2]
    assert [one.pop("out") for one in records] == [str(out / "clip=1"), str(out / "clip=2")]
    assert MergeRecord.load(out / "clip=1").model_dump(mode="json") == records[0]


TWO = ("--sweep", "rescale=0.5,0.9", "--sweep", "clip=0.5,1")


def test_two_sweeps_merge_every_combination_from_one_reading(run, sources, tmp_path):
    ran = run("merge", *sources, "--out", str(tmp_path / "all"), *TWO, "--dtype", "float32")
    names = [f"rescale={r},clip={c}" for r in ("0.5", "0.9") for c in ("0.5", "1")]
    assert ran.code == 0
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == names
    for name in names:
        record = MergeRecord.load(tmp_path / "all" / name)
        assert (record.timing.outputs, record.timing.folds) == (4, 1)
        settings = [word for pair in name.split(",") for word in ("--set", pair)]
        run("merge", *sources, "--out", str(tmp_path / name), *settings, "--dtype", "float32", "--quiet")
        alone, swept = (folder / name / "model.safetensors" for folder in (tmp_path, tmp_path / "all"))
        assert alone.read_bytes() == swept.read_bytes()


def test_three_sweeps_are_eight_merges(run, sources, tmp_path):
    args = ("--sweep", "rescale=0,1", "--sweep", "clip=1,2", "--sweep", "curve=linear,soft", "--quiet")
    run("merge", *sources, "--out", str(tmp_path / "all"), *args)
    assert len(list((tmp_path / "all").iterdir())) == 8


def test_a_sweep_tells_what_the_agents_changed_once_and_a_row_per_merge(run, sources, tmp_path):
    out = run("merge", *sources, "--out", str(tmp_path / "all"), "--sweep", "rescale=0.5,0.9,1").out
    assert out.count("merged elements, changed where") == 1
    for value in ("0.5", "0.9", "1"):
        scale = MergeRecord.load(tmp_path / f"all/rescale={value}").survey.agents["code"].scale
        assert [f"{scale:.4f}" in line for line in out.splitlines() if line.startswith(f"rescale={value} ")] == [True]
    assert "Merged code, tool 3 times" in out


def test_a_sweep_of_the_threshold_tells_what_each_counts(run, sources, tmp_path):
    out = run("merge", *sources, "--out", str(tmp_path / "all"), "--sweep", "threshold=1e-5,1e-3").out
    assert "> 1e-05" in out
    assert "> 0.001" in out


def test_a_dry_run_of_a_sweep_shows_every_folder_and_the_disk_for_all(run, sources, tmp_path):
    args = ("merge", *sources, "--out", str(tmp_path / "all"), "--sweep", "rescale=0,0.5,1", "--dry-run")
    out = run(*args).out
    for value in ("0", "0.5", "1"):
        assert re.search(rf"/all/rescale={re.escape(value)}\s", out)
    one = json.loads(run("merge", *sources, "--out", str(tmp_path / "one"), "--dry-run", "--json").out)
    plans = json.loads(run(*args, "--json").out)
    assert [plan["method"]["rescale"] for plan in plans] == [0, 0.5, 1]
    assert [plan["out"] for plan in plans] == [f"{tmp_path}/all/rescale={value}" for value in ("0", "0.5", "1")]
    assert sum(plan["write_bytes"] for plan in plans) == 3 * one["write_bytes"]
    assert "3.9MB" in out
    assert "disk    11.8MB needed for all" in out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_refuses_a_sweep_that_a_merge_refuses(run, sources, agents, tmp_path):
    for words in (["--dry-run"], []):
        ran = run("merge", *sources, "--out", str(tmp_path / "all"), "--sweep", "rescale=0,-1", *words)
        assert (ran.code, "method.rescale" in ran.err) == (2, True)


def test_a_dry_run_says_the_method_in_a_recipes_words(run, sources, tmp_path):
    words = ("--method", "dare", "--set", "density=0.25", "--set", "then=ties")
    out = run("merge", *sources, "--out", str(tmp_path / "out"), *words, "--dry-run").out
    method = next(line for line in out.splitlines() if line.startswith("method"))
    assert method.startswith("method  dare: then ties (density 0.2, scale 1.0")
    for python in ("None", "True", "'", "Dare(", "{"):
        assert python not in method


def test_one_bad_value_of_a_sweep_is_one_line(run, sources, tmp_path):
    ran = run("merge", *sources, "--out", str(tmp_path / "all"), "--sweep", "rescale=0,0.1,abc")
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1
    assert "method.rescale: " in ran.err
    assert "found 'abc'. It may also be 'auto'." in ran.err


@pytest.mark.parametrize(("given", "stored"), [("bf16", "bfloat16"), ("fp16", "float16"), ("torch.float32", "float32")])
def test_a_dtype_may_be_spelled_as_people_do(run, sources, tmp_path, given, stored):
    run("merge", *sources, "--out", str(tmp_path / "out"), "--dtype", given, "--quiet")
    assert MergeRecord.load(tmp_path / "out").recipe["output"]["dtype"] == stored


def test_a_sweep_that_was_killed_while_it_published_finishes_the_rest(run, sources, tmp_path):
    args = ("merge", *sources, "--out", str(tmp_path / "all"), "--sweep", "clip=1,2", "--quiet")
    run(*args)
    first = (tmp_path / "all/clip=1/model.safetensors").stat().st_mtime_ns
    shutil.rmtree(tmp_path / "all/clip=2")
    assert run(*args).code == 0
    assert (tmp_path / "all/clip=1/model.safetensors").stat().st_mtime_ns == first
    assert (tmp_path / "all/clip=2/model.safetensors").exists()


def test_a_field_that_is_swept_twice_is_refused(run, sources, tmp_path):
    ran = run("merge", *sources, "--out", str(tmp_path / "all"), "--sweep", "clip=1", "--sweep", "clip=2")
    assert (ran.code, "'clip' is swept twice" in ran.err) == (2, True)


@pytest.mark.parametrize("text", ["rescale", "rescale=", "rescale=1,,2", "rescale=1,1", "=1"])
def test_a_sweep_of_another_form_is_refused(run, sources, tmp_path, text):
    ran = run("merge", *sources, "--out", str(tmp_path / "all"), "--sweep", text)
    assert ran.code == 2
    assert "FIELD=V1,V2" in ran.err


def test_a_merge_is_done_again_from_its_record(run, sources, tmp_path):
    run("merge", *sources, "--out", str(tmp_path / "out"), "--method", "ties", "--set", "density=0.3")
    ran = run("merge", str(tmp_path / "out" / "merge_record.json"), "--out", str(tmp_path / "again"))
    assert ran.code == 0, ran.err
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "again")]
    assert weights[0] == weights[1]
    into = run("merge", str(tmp_path / "out" / "merge_record.json"), "--out", str(tmp_path / "out"), "--overwrite")
    assert into.code == 2
    assert "the recipe" in into.err


def test_weights_are_given_by_agent_beside_options_and_files(run, sources, agents, tmp_path):
    ran = run("merge", *sources, "--weight", "code=0.5", "--out", str(tmp_path / "out"), "--json")
    given = json.loads(ran.out)["recipe"]["agents"]
    assert (given["code"]["weight"], given["tool"]["weight"]) == (0.5, 1.0)
    record = str(tmp_path / "out" / "merge_record.json")
    again = run("merge", record, "--weight", "tool=0.25", "--out", str(tmp_path / "again"), "--json")
    found = json.loads(again.out)["recipe"]["agents"]
    assert (found["code"]["weight"], found["tool"]["weight"]) == (0.5, 0.25)
    assert found["tool"]["source"] == f"{agents}/tool"
    for word, said in (
        ("cod=1", "no agent 'cod'. Did you mean 'code'?"),
        ("code=x", "agents.code.weight"),
        ("1", "NAME=NUMBER"),
    ):
        refused = run("merge", *sources, "--weight", word, "--out", str(tmp_path / "no"))
        assert refused.code == 2
        assert said in refused.err
