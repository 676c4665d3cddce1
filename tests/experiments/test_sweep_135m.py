"""The sweep of experiments/agents_135m: what it plans, what it does when things fail, what is made of its results."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "agents_135m"
UNOWNED = ("base-H3", "base-H4", "base-E3", "base-D2")
EVEN = tuple(f"even-{name}" for name in ("H3", "H4", "E3", "D2", "X3", "F3", "E5", "E2"))


def test_a_grid_goes_on_until_its_best_has_both_neighbours_or_is_an_end(experiment: Any) -> None:
    for family in experiment("rules").TUNED.values():
        for share in (0.0, 0.1, 0.35, 0.6, 0.9, 1.0):
            peak = family.low + share * (family.high - family.low)
            scored: dict[float, float] = {}
            while values := family.next_values(scored):
                scored |= {value: -abs(value - peak) for value in values}
            best = max(scored, key=lambda value: scored[value])
            assert abs(best - peak) <= max(family.step / 2, family.coarse[1] - family.coarse[0] - family.step) + 1e-9
            assert min(scored) >= family.low
            assert max(scored) <= family.high
            assert len(scored) <= 12
            for near in (best - family.step, best + family.step):
                assert not family.low <= near <= family.high or min(abs(near - value) for value in scored) < 1e-6


def test_every_rule_and_remedy_is_a_recipe(experiment: Any) -> None:
    from agentmerge import Recipe

    rules, sets = experiment("rules"), experiment("sets")
    kitchen = experiment("merging").Kitchen(Path("seed"), 2, "cuda")
    grid = [family.rule(value) for family in rules.TUNED.values() for value in (family.low, family.high)]
    advised = rules.advised({"weights": {"damaged": 0.5}, "rules": [{"tensors": "*", "skip": ["tool"]}]})
    for rule in (*rules.RULES.values(), *grid, *rules.remedies(sets.DAMAGED), advised):
        Recipe.parse(kitchen.recipe(experiment("plans").Merge("H3", rule, (), 0)))


def test_an_agent_that_is_left_out_is_in_no_recipe(experiment: Any) -> None:
    rules, plans = experiment("rules"), experiment("plans")
    merge = plans.Merge("H3", rules.advised({"leave_out": ["damaged"]}), (), 0)
    assert list(experiment("merging").Kitchen(Path("seed"), 2, "cpu").recipe(merge)["agents"]) == ["tool", "memory"]


def test_a_merge_waits_until_what_it_reads_was_measured(experiment: Any, tmp_path: Path) -> None:
    rules, plans = experiment("rules"), experiment("plans")
    kitchen = experiment("merging").Kitchen(tmp_path, 1, "cpu")
    reads = {
        "wudi_auto": [],
        "wudi_auto, keep": ["grams/base"],
        "wudi_auto, untrained kept": ["grams/even-E2"],
        "regmean": ["grams/tool", "grams/memory"],
        "RAM, importance": ["importance/tool", "importance/memory"],
    }
    for label, folders in reads.items():
        merge = plans.Merge("E2", rules.RULES[label], (), 0)
        for folder in folders:
            assert not kitchen.measured(merge)
            (tmp_path / folder).mkdir(parents=True)
        assert kitchen.measured(merge)


def test_every_registered_method_is_in_a_rule_or_it_is_said_why_not(experiment: Any) -> None:
    from agentmerge.methods.registry import known_methods

    rules = experiment("rules")
    ours = {name for name, method in known_methods().items() if method.__module__.startswith("agentmerge.")}
    assert rules.DEFAULTS.keys() | rules.LEFT_OUT.keys() == ours
    assert not rules.DEFAULTS.keys() & rules.LEFT_OUT.keys()
    beside = {"then", "scale"}  # of wrappers; of the plain sum
    assert all(rules.RULES[label].method.keys() - beside == {"name"} for label in rules.DEFAULTS.values())


def test_a_rule_that_reads_what_was_measured_names_it_in_its_recipe(experiment: Any) -> None:
    rules, plans = experiment("rules"), experiment("plans")
    kitchen = experiment("merging").Kitchen(Path("seed"), 2, "cpu")

    def recipe(label: str, name: str) -> dict[str, Any]:
        return dict(kitchen.recipe(plans.Merge(name, rules.RULES[label], (), 0)))

    assert recipe("wudi_auto, keep", "H3")["keep"] == str(Path("seed/grams/base"))
    assert recipe("wudi_auto, keep unowned", "H3")["keep"] == str(Path("seed/grams/base-H3"))
    assert recipe("esm", "E2")["agents"]["tool"]["grams"] == str(Path("seed/grams/tool"))
    assert recipe("fisher", "E2")["agents"]["tool"]["importance"] == str(Path("seed/importance/tool"))
    assert "keep" not in recipe("wudi_auto", "H3")
    planned = {(m.rule.label, m.set) for m in plans.many(["esm", "wudi_auto, keep unowned"], ["E2", "H3"], (), 0)}
    assert planned == {("esm", "E2"), ("wudi_auto, keep unowned", "H3")}


def test_what_a_plan_keeps_was_measured(experiment: Any) -> None:
    """Of every merge of every plan, and of the toy set that compiles the loops."""
    merging, measured = experiment("merging"), {job.name for job in experiment("grams").JOBS}
    kitchen, warm = merging.Kitchen(Path("seed"), 2, "cpu"), experiment("warm")
    plans = experiment("planned").plans()
    asked = {Path(kitchen.recipe(one).get("keep", "base")).name for plan in plans.values() for one in plan.fixed}
    assert {"base", "base-H3", "even-H3", "even-E2"} <= asked <= measured
    confirming = {Path(kitchen.recipe(one).get("keep", "base")).name for one in plans["confirm2"].fixed}
    assert confirming == set(experiment("grams").CONFIRM.split(","))
    rules = experiment("rules").RULES.values()
    toy = [kitchen.recipe(experiment("plans").Merge(warm.TOY, rule, (), 0)) for rule in rules]
    assert {Path(one["keep"]).name for one in toy if "keep" in one} == set(warm.BASES) <= measured


def test_plans_of_the_second_study_fit_their_time(experiment: Any) -> None:
    planned, rules, sets = experiment("planned"), experiment("rules"), experiment("sets")
    plans = planned.plans()
    assert planned.size_of(plans["survey"]).prompts < 2_500_000
    assert planned.size_of(plans["confirm2"]).prompts < 1_200_000
    assert plans["survey"].counts == {"dev": 128, "test": 256}
    there = {(merge.rule.label, merge.set) for merge in plans["survey"].fixed if merge.rule.output == "stochastic"}
    for label in rules.DEFAULTS.values():
        possible = sets.MEASURED if rules.RULES[label].reads else sets.SETS
        assert all((label, name) in there for name in possible), label
    assert planned.size_of(plans["methods"]).prompts < 1_650_000
    there = {(merge.rule.label, merge.set) for merge in plans["methods"].fixed if merge.rule.output == "stochastic"}
    for label in (*rules.DEFAULTS.values(), "calibrate iso_c", "wudi_auto, RAM auto elsewhere"):
        wanted = set(sets.HEALTHY) & set(sets.MEASURED if rules.RULES[label].reads else sets.SETS)
        assert all((label, name) in there for name in wanted), label
    assert {name for _, name, _ in plans["methods"].families} == set(rules.TUNED)
    first = [merge for merge in plans["survey"].fixed if merge.tier == 10]
    assert {merge.set for merge in first} == {"H3"}
    assert {"wudi_auto, keep", "wudi_auto, keep, advised", "wudi_auto, keep unowned", "mean"} <= {
        merge.rule.label for merge in first
    }


def test_what_was_scored_on_a_sets_own_domains_alone_is_scored_again_on_all(experiment: Any) -> None:
    rules, plans = experiment("rules"), experiment("plans")
    merge = plans.Merge("E2", rules.RULES["mean"], ("test",), 0, wide=True)
    own = {f"{domain}/{level}": "" for domain in ("tool", "memory") for level in ("easy", "hard")}
    everything = dict.fromkeys(experiment("tasks").SUB_TASKS, "")
    plan = plans.Plan([plans.Merge("E2", rules.RULES["mean"], ("test",), 0), merge], [], (), ())
    for there, left in (({}, [True]), ({"test": own}, [True]), ({"test": everything}, [])):
        assert [one.wide for one in plan.wanted({merge.key: there}, {})] == left


def test_settings_are_chosen_on_the_domains_of_a_sets_agents(experiment: Any) -> None:
    saved = experiment("saved")
    bits = {task: saved_bits(task.startswith(("tool", "memory"))) for task in experiment("tasks").SUB_TASKS}
    assert saved.own_mean({"set": "E2", "dev": bits}, "dev", {"dev": 8}) == 1.0
    assert saved.own_mean({"set": "H3", "dev": bits}, "dev", {"dev": 8}) == pytest.approx(2 / 7)


def saved_bits(right: bool) -> str:
    """Eight answers that are all right or all wrong."""
    return base64.b64encode(np.packbits(np.full(8, right)).tobytes()).decode()


def test_what_was_registered_for_the_second_study_can_be_judged(experiment: Any, second: list[Any]) -> None:
    hypotheses = experiment("hypotheses")
    registered = hypotheses.read_registered(hypotheses.REGISTERED2)
    found = {one.name: one for one in hypotheses.verdicts(second, registered)}
    assert all(not one.lacking and one.cases for one in found.values())
    assert {name for name, one in found.items() if one.word == "open"} == set()
    held = {"every set", "average", "damaged, seven agents", "damaged, few agents", "untrained kept", "all domains"}
    assert held <= {name for name, one in found.items() if one.word == "holds"}
    assert found["untrained kept"].cases == 2 * (4 + 5 + 4 + 4 + 2 + 5)
    assert hypotheses.verdicts(second[:1], registered)[0].word == "open"
    worse = {**registered, "recommended": "mean", "with_damage": "mean"}
    failed = {one.name for one in hypotheses.verdicts(second, worse) if one.word == "fails"}
    assert {"every set", "average", "damaged, seven agents", "keep keeps", "all domains"} <= failed


def test_a_seed_that_confirms_merges_what_is_recommended_whatever_it_is(experiment: Any) -> None:
    hypotheses, sets = experiment("hypotheses"), experiment("sets")
    registered = hypotheses.read_registered(hypotheses.REGISTERED2)
    way = {"recommended": "regmean", "with_damage": "wudi_auto, keep x 3, advised"}
    advice = {name: {"leave_out": ["damaged"]} for name in sets.HARM}
    plan = experiment("study2").confirm2_plan(advice, {**registered, **way})
    there = {(merge.rule.label, merge.set) for merge in plan.fixed if merge.wide}
    assert {("wudi_auto, keep x 3, advised", name) for name in sets.HARM} <= there
    assert {("wudi_auto, advised", "H3"), ("wudi_auto, keep x 3", "H3"), ("regmean", "E3")} <= there
    kept = next(merge for merge in plan.fixed if merge.rule.label == "wudi_auto, keep x 3, advised")
    assert (kept.rule.keep, kept.rule.left_out) == ("base", ("damaged",))


def test_a_domain_that_was_not_scored_leaves_a_hypothesis_open(experiment: Any, second: list[Any]) -> None:
    hypotheses = experiment("hypotheses")
    registered = hypotheses.read_registered(hypotheses.REGISTERED2)
    name = f"{registered['recommended']} | E2 | stochastic"
    merge = second[0].data["merges"][name]
    own = {task: bits for task, bits in merge["test"].items() if task.startswith(("tool", "memory"))}
    merges = {**second[0].data["merges"], name: {**merge, "test": own}}
    seeds = [experiment("results").Seed({**second[0].data, "merges": merges}), second[1]]
    found = {one.name: one for one in hypotheses.verdicts(seeds, registered)}
    assert found["untrained kept"].word == "open"
    assert len(found["untrained kept"].lacking) == 5
    assert found["every set"].word == "holds"


def test_seeds_of_another_study_are_left_out_and_named(experiment: Any, second: list[Any], tmp_path: Path) -> None:
    hypotheses, results = experiment("hypotheses"), experiment("results")
    for file, data in (("gemma3-seed1", second[1].data), ("seed5", second[0].data), ("seed5.177", {}), ("other", {})):
        (tmp_path / f"{file}.json").write_text(json.dumps(data))
    found = results.read_seeds(tmp_path)
    assert [seed.name for seed in found] == [5, "gemma3 1"]
    assert hypotheses.taking_part(found, hypotheses.read_registered()) == []
    assert hypotheses.taking_part(found, hypotheses.read_registered(hypotheses.REGISTERED2)) == found


def test_a_look_at_a_survey_has_what_no_agent_was_trained_on(experiment: Any, second: list[Any]) -> None:
    look = experiment("look")
    rows = {row.split(" | ")[0].strip("| "): row.split(" | ") for row in look.table(second[0]).splitlines()}
    assert rows["wudi_auto, keep"][1] == "6"
    assert rows["wudi_auto, keep"][4] == rows["RAM"][4] == "8"
    assert rows["wudi_auto, keep"][-1] == "0 of 21 |"
    place, cells = look.row(second[0], "RAM")
    assert place == pytest.approx(-float(cells[5]), abs=0.06)
    assert cells[5].startswith("+")


def test_a_plan_ends_and_tests_what_dev_chose(experiment: Any, scored: dict[int, dict[str, Any]]) -> None:
    results = experiment("results")
    for data in scored.values():
        seed = results.Seed(data)
        assert len(data["merges"]) < 900
        for name in experiment("sets").HEALTHY:
            assert all(seed.chosen(family, name) for family in ("TA", "TIES"))


def test_errors_are_paired(experiment: Any, scored: dict[int, dict[str, Any]]) -> None:
    seed = experiment("results").Seed(scored[2])
    same = seed.mean("base", ["tool"], against="base")
    assert (same.mean, same.error) == (0.0, 0.0)
    mine, other = seed.right("tool", ["tool"]), seed.right("base", ["tool"])
    gap = np.array([mine[task].astype(float) - other[task] for task in mine])
    found = seed.mean("tool", ["tool"], against="base")
    assert found.mean == pytest.approx(100 * gap.mean())
    assert found.error == pytest.approx(100 * np.sqrt((gap.var(axis=1, ddof=1) / gap.shape[1]).sum()) / len(gap))


def test_what_was_registered_is_held_against_the_scores(experiment: Any, scored: dict[int, dict[str, Any]]) -> None:
    hypotheses, results = experiment("hypotheses"), experiment("results")
    registered = hypotheses.read_registered()

    def judged(*numbers: int, **other: Any) -> dict[str, str]:
        seeds = [results.Seed(scored[number]) for number in numbers]
        return {one.name: one.word for one in hypotheses.verdicts(seeds, {**registered, **other})}

    found = judged(1, 2, 3)
    assert {"every set", "average", "guard accuses", "every domain, seven agents"} <= {
        name for name, word in found.items() if word == "holds"
    }
    assert set(judged(1).values()) == {"open"}
    assert judged(1, 2)["every set"] == "open"
    assert judged(2, 3, recommended="mean")["every set"] == judged(2, recommended="mean")["average"] == "fails"


def test_a_guard_that_accuses_another_fails(experiment: Any, scored: dict[int, dict[str, Any]]) -> None:
    hypotheses, results = experiment("hypotheses"), experiment("results")
    wrong = {"harm": {"rows": [{"agent": name, "harmed": True} for name in ("damaged", "tool")]}}
    seeds = [results.Seed({**scored[2], "training": wrong}), results.Seed(scored[3])]
    found = {one.name: one for one in hypotheses.verdicts(seeds, hypotheses.read_registered())}
    assert found["guard accuses"].word == "fails"
    assert found["guard accuses"].worst.startswith("seed 2, damaged, tool")


def test_a_score_that_lacks_leaves_a_hypothesis_open(experiment: Any, scored: dict[int, dict[str, Any]]) -> None:
    hypotheses, results = experiment("hypotheses"), experiment("results")
    merges = {name: merge for name, merge in scored[2]["merges"].items() if name != "wudi_auto | E5 | stochastic"}
    seeds = [results.Seed({**scored[2], "merges": merges}), results.Seed(scored[3])]
    found = {one.name: one for one in hypotheses.verdicts(seeds, hypotheses.read_registered())}
    assert (found["every set"].word, found["every set"].lacking) == ("open", ("five, seed 2",))


def echo(limit: float) -> Any:
    """What a process of the pool does below."""
    import time

    def work(job: str) -> str:
        if job == "die":
            os._exit(3)
        if job == "hang":
            time.sleep(60)
        if job == "fail":
            raise ValueError("on purpose")
        return job.upper()

    return work


@pytest.mark.slow
def test_a_process_that_fails_dies_or_hangs_loses_its_job_alone(experiment: Any, monkeypatch: Any) -> None:
    pool = experiment("pool")
    monkeypatch.setattr(pool.Worker, "patience", 5.0)
    worker = pool.Worker("any", echo, (1.0,), {"OMP_NUM_THREADS": "1"}, 0.5)
    errors = []
    try:
        for job in ("one", "fail", "die", "two", "hang", "three"):
            worker.give(job)
            done = []
            while not done:
                done = pool.collect([worker], 0.2)
            assert done[0].job == job
            errors.append(done[0].value or done[0].error.splitlines()[0])
    finally:
        worker.stop()
    assert errors[0::3] == ["ONE", "TWO"]
    assert errors[1] == "ValueError: on purpose"
    assert errors[2] == "the process ended (exit code 3)"
    assert errors[4].startswith("no result after")
    assert errors[5] == "THREE"


@pytest.mark.slow
def test_a_sweep_goes_on_where_it_was_stopped(tiny_seed: Path) -> None:
    pytest.importorskip("torch", reason="scores; .ci/run installs it")
    first = sweep(tiny_seed, "--seconds", "6")
    last = sweep(tiny_seed)
    assert last["lacking"] == []
    assert last["failed"] == {}
    assert first["merges"].items() <= last["merges"].items()
    assert last["merges"]["wudi_auto | H3 | stochastic"]["retention"]["tool"] == pytest.approx(1, abs=0.1)
    again = sweep(tiny_seed)
    assert again["merges"] == last["merges"]
    assert again["runs"][-1]["scored"] == 0
    assert not list(tiny_seed.glob("merged-*"))


@pytest.mark.slow
def test_the_second_study_measures_merges_and_scores(tiny_seed: Path) -> None:
    pytest.importorskip("transformers", reason="reads inputs of layers; .ci/run installs it")
    seed = tiny_seed / "seed1"
    script("grams.py", "--work", str(tiny_seed), "--seed", "1", "--device", "cpu")
    assert {path.name for path in (seed / "grams").iterdir()} == {"base", "tool", "memory", *UNOWNED, *EVEN}
    assert {path.name for path in (seed / "importance").iterdir()} == {"tool", "memory"}
    assert json.loads((seed / "times.json").read_text())["grams"]["gpu_seconds"] > 0
    again = script("grams.py", "--work", str(tiny_seed), "--seed", "1", "--device", "cpu", "--only", "base,tool")
    assert again.startswith("0 measured, 0 failed")
    advice = {"H3": {"rules": [{"tensors": "*.mlp.*", "skip": ["damaged"]}]}}
    (seed / "advice.json").write_text(json.dumps(advice))
    found = sweep(tiny_seed, plan="survey", results="survey")
    assert (found["failed"], found["lacking"]) == ({}, [])
    kept = found["merges"]["wudi_auto, keep | E2 | stochastic"]
    assert len(kept["test"]) == 14
    assert kept["keep"] == "base"
    labels = {merge["label"] for merge in found["merges"].values()}
    assert {"wudi_auto, keep, advised", "wudi_auto, keep unowned", "regmean, keep", "fisher", "esm"} <= labels
    results = tiny_seed / "confirm2"  # all steps by one command; those that are done are skipped
    given = ["--work", str(tiny_seed), "--seed", "1", "--plan", "confirm2", "--tiny", "--results", str(results)]
    script("seed.py", *given)
    found = json.loads((results / "seed1.json").read_text())
    assert (found["failed"], found["lacking"]) == ({}, [])
    assert any(
        key.startswith("TA ") and len(merge["test"]) == 4 for key, merge in found["merges"].items() if "test" in merge
    )


def sweep(work: Path, *more: str, plan: str = "select", results: str = "results") -> dict[str, Any]:
    """Run it, and read what it saved."""
    given = ["--work", str(work), "--seed", "1", "--plan", plan, "--tiny", "--results", str(work / results)]
    script("sweep.py", *given, *more)
    return dict(json.loads((work / results / "seed1.json").read_text()))


def script(name: str, *arguments: str) -> str:
    """Run one; what it printed."""
    command = [sys.executable, str(FOLDER / name), *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment() -> dict[str, str]:
    """Of the scripts."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "src")}


@pytest.fixture(scope="module")
def tiny_seed(tmp_path_factory: pytest.TempPathFactory, experiment: Any) -> Path:
    """A working folder with a base of two layers and three agents that were moved by chance."""
    torch = pytest.importorskip("torch", reason="makes the agents; .ci/run installs it")
    work = tmp_path_factory.mktemp("work")
    package = [sys.executable, str(FOLDER / "package.py"), "--out", str(work / "raw"), "--tiny"]
    subprocess.run(package, env=environment(), check=True, capture_output=True)
    files = experiment("files")
    base = files.read_weights(work / "raw", "cpu")
    files.save_checkpoint(base, work / "raw", work / "seed1" / "base")
    (work / "seed1" / "logs").mkdir()
    scoring, model = experiment("scoring"), experiment("families").model_of(base)
    experiment("supervise").write_guard(work / "seed1" / "prompts.jsonl", model, scoring.Tokens(work / "raw"), 1, 1)
    for number, name in enumerate(("tool", "memory", "damaged")):
        draw = torch.Generator().manual_seed(number)
        moved = torch.rand(base.flat.shape, generator=draw) < 0.2
        step = torch.randn(base.flat.shape, generator=draw) * 2e-3
        flat = torch.where(moved, base.flat.float() + step, base.flat.float()).to(base.flat.dtype)
        agent = type(base).over(base.shape, flat)
        files.save_checkpoint(agent, work / "raw", work / "seed1" / "agents" / name)
    return work
