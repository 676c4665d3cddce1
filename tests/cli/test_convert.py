"""agentmerge convert, as a user calls it."""

import json

import pytest

from agentmerge.recipe import Recipe

TEXT = """
merge_method: ties
base_model: org/base
models: [{model: org/x, parameters: {weight: 1}}]
parameters: {density: 0.5, int8_mask: true}
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "mergekit.yml"
    path.write_text(TEXT)
    return path


def test_the_recipe_goes_to_stdout_and_warnings_to_stderr(run, config, tmp_path):
    ran = run("convert", str(config))
    assert ran.code == 0
    assert "warning: parameters.int8_mask: left out" in ran.err
    (tmp_path / "recipe.yaml").write_text(ran.out)
    assert Recipe.load(tmp_path / "recipe.yaml").method.name == "ties"
    assert run("convert", str(config), "--quiet").err == ""


def test_the_recipe_goes_to_a_file_that_is_never_overwritten(run, config, tmp_path):
    out = tmp_path / "recipe.yaml"
    ran = run("convert", str(config), "--out", str(out))
    assert (ran.code, ran.out) == (0, "")
    written = out.read_text()
    assert Recipe.load(out).base == "org/base"
    again = run("convert", str(config), "--out", str(out))
    assert again.code == 2
    assert "exists already" in again.err
    assert out.read_text() == written
    assert run("convert", str(config), "--out", str(tmp_path / "no" / "recipe.yaml")).code == 2


def test_for_machines_it_is_the_recipe_and_what_was_said(run, config):
    told = json.loads(run("convert", str(config), "--json", "--quiet").out)
    assert Recipe.parse(told["recipe"]).method.name == "ties"
    assert [warning for warning in told["warnings"] if "int8_mask" in warning]


def test_a_gradient_needs_the_number_of_layers(run, config):
    config.write_text(TEXT.replace("0.5", "[0.2, 0.8]"))
    refused = run("convert", str(config))
    assert refused.code == 2
    assert refused.err.startswith("RecipeError: ")
    assert "--layers" in refused.err
    ran = run("convert", str(config), "--layers", "3")
    assert "'*layers.1.*', density: 0.5" in ran.out


def test_what_has_no_equal_is_one_calm_message(run, config):
    config.write_text(TEXT.replace("ties", "karcher"))
    ran = run("convert", str(config))
    assert (ran.code, ran.out) == (2, "")
    assert "merge_method: found karcher; this method is not here. Nearest: `linear`" in ran.err
    assert run("convert", str(config.parent / "none.yml")).code == 2


@pytest.mark.parametrize("command", [["merge", "--out", "o"], ["check"], ["probe"]], ids=" ".join)
def test_a_configuration_given_to_another_command_names_this_one(run, config, command):
    ran = run(command[0], str(config), *command[1:])
    assert ran.code == 2
    assert "this is a mergekit configuration" in ran.err
    assert f"agentmerge convert {config} --out recipe.yaml" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_several_configurations_given_to_merge_name_this_one_too(run, config):
    config.write_text(f"{TEXT}---\n{TEXT}")
    ran = run("merge", str(config), "--out", "o")
    assert "it holds 2 documents (---), expected one" in ran.err
    assert "agentmerge convert" in ran.err


def test_what_has_to_be_fetched_is_said_on_stderr(run, config, tmp_path):
    ran = run("convert", str(config), "--out", str(tmp_path / "recipe.yaml"))
    assert "\nhf download org/base --local-dir org/base\nhf download org/x --local-dir org/x\n" in ran.err
    told = json.loads(run("convert", str(config), "--json", "--quiet").out)
    assert told["downloads"][0] == "hf download org/base --local-dir org/base"


def test_a_refusal_is_told_first_and_the_warnings_behind_it(run, config):
    config.write_text(TEXT.replace("0.5", "0") + "chat_template: auto\n")
    lines = run("convert", str(config)).err.splitlines()
    assert lines[0].startswith("RecipeError: ")
    assert any(line.startswith("warning: chat_template: auto is left out") for line in lines[1:])
    assert len(run("convert", str(config), "--quiet").err.splitlines()) == 1
