"""`agentmerge synth` says where the set is and what to do next."""

from __future__ import annotations

import inspect
import json
import shlex

import pytest
import typer
from typer.testing import CliRunner

from agentmerge.cli.synth import synth
from agentmerge.errors import RecipeError
from agentmerge.synth.shapes import SHAPES


def run(*words):
    app = typer.Typer()
    app.command()(synth)
    return CliRunner().invoke(app, [str(word) for word in words])


def test_it_ends_with_the_exact_next_command(tmp_path):
    out = tmp_path / "a set"
    result = run("--out", out, "--agents", 2)
    assert result.exit_code == 0
    assert shlex.split(result.stdout.splitlines()[-1]) == [
        *("agentmerge", "probe", "--base", f"{out}/base"),
        *("--agent", f"code={out}/code", "--agent", f"tool={out}/tool"),
    ]


def test_densities_decide_the_number_of_agents(tmp_path):
    assert "10.0% changed" in run("--out", tmp_path / "set", "--densities", "0.1").stdout
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ["base", "code"]


def test_quiet_prints_nothing(tmp_path):
    assert run("--out", tmp_path / "set", "--agents", 1, "--quiet").output == ""


def test_for_machines_it_is_the_report(tmp_path):
    report = json.loads(run("--out", tmp_path / "set", "--agents", 1, "--json").stdout)
    assert report["agents"] == {"code": str(tmp_path / "set" / "code")}
    assert report["changed"]["code"] > 0


def test_help_names_every_shape():
    text = inspect.signature(synth, eval_str=True).parameters["shape"].annotation.__metadata__[0].help
    assert all(name in text for name in SHAPES)


def test_densities_that_are_no_numbers_are_told(tmp_path):
    error = run("--out", tmp_path / "set", "--densities", "0.1,x").exception
    assert isinstance(error, RecipeError)
    assert "'0.1,x' is not a list of numbers" in str(error)


@pytest.mark.parametrize("size", ["5XB", "0"])
def test_a_shard_size_that_is_none_is_told(tmp_path, size):
    assert isinstance(run("--out", tmp_path / "set", "--shard-size", size).exception, RecipeError)
