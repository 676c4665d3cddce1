"""A command's options are the recipe's fields: nothing is declared twice, and every field says what it is."""

from __future__ import annotations

import inspect
import json
from typing import Annotated, Any

import pytest
import typer
import yaml

from agentmerge.cli import COMMANDS, app, function_of
from agentmerge.cli.fields import recipe_fields
from agentmerge.cli.options import SHORTHANDS, takes_recipe
from agentmerge.cli.schema import recipe_table
from agentmerge.cli.sizes import parse_size
from agentmerge.errors import RecipeError
from agentmerge.recipe import SECTIONS, Recipe

OWN = {
    "merge": {"out", "patch", "undo", "dry_run", "sweep", "report", "push", "public", "overwrite", "json", "quiet"},
    "probe": {"json", "full", "html", "figures", "quiet"},
    "check": {"json"},
}
"""What these commands have that is no field of a recipe."""
LEFT_OUT = {
    "merge": set(),
    "probe": {"onto", "keep", "inputs.tokenizer_from", "output", "seed", "run.runner", "run.survey", "run.allow_slow"},
    "check": {"output", "seed", "run"},
}
"""Sections and fields that do nothing there."""
FIELDS = {field.path: field for field in recipe_fields()}
SETTABLE = {path for path, field in FIELDS.items() if field.section in SECTIONS} | {"base", "onto", "keep", "seed"}
"""What one word on the command line can give; agents, method and its settings have shorthands."""


def group() -> Any:
    return typer.main.get_command(app)


def parameters(command: str) -> dict[str, Any]:
    return {one.name: one for one in group().get_command(None, command).params if one.name != "help"}


# the options are the fields


@pytest.mark.parametrize("command", OWN)
def test_every_option_is_a_field_of_the_recipe_or_the_commands_own(command):
    expected = {path for path in SETTABLE if not {path, FIELDS[path].section} & LEFT_OUT[command]}
    names = {FIELDS[path].name for path in expected}
    assert set(parameters(command)) == names | OWN[command] | set(SHORTHANDS)


@pytest.mark.parametrize("command", OWN)
def test_an_option_is_named_and_explained_as_its_field_and_shows_its_default(run, command):
    text = " ".join(run(command, "--help").out.split())
    for path in SETTABLE:
        field = FIELDS[path]
        option = parameters(command).get(field.name)
        if option is None:
            continue
        assert option.opts == [f"--{field.name.replace('_', '-')}"]
        assert option.help == field.meaning
        assert option.is_flag == field.flag
        if not field.flag and field.default not in ("", "null"):
            assert f"[default: ({field.default})]" in text
            assert option.show_default == field.default


def test_a_recipe_of_options_is_the_one_of_the_file(tmp_path, recipe_of):
    data = {
        "base": "b",
        "onto": "o",
        "keep": "k",
        "agents": {"code": "c"},
        "method": {"name": "wudi_auto", "ridge": "0.3"},
        "inputs": {
            "missing": "base",
            "extra": "ignore",
            "unchanged": "allow",
            "vocab": "base-rows",
            "rope": "base",
            "storage_rounding": "count",
            "measured": "allow",
            "untie": True,
            "tokenizer_from": "code",
        },
        "output": {"dtype": "float32", "rounding": "stochastic", "shard_size": "1MB"},
        "seed": 7,
        "run": {"workers": 3, "block_size": "64KB", "runner": "local", "survey": "s.json", "allow_slow": True},
    }
    assert {f"{section}.{name}" for section in SECTIONS for name in data[section]} | {
        "base",
        "onto",
        "keep",
        "seed",
    } == SETTABLE
    words = [
        "--base",
        "b",
        "--onto",
        "o",
        "--keep",
        "k",
        "--agent",
        "code=c",
        "--method",
        "wudi_auto",
        "--set",
        "ridge=0.3",
        "--seed",
        "7",
    ]
    for section in SECTIONS:
        for name, value in data[section].items():
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(data))
    assert recipe_of(*words) == recipe_of(str(tmp_path / "recipe.yaml")) == Recipe.parse(data)


def test_options_beside_a_file_replace_only_what_they_name(tmp_path, recipe_of):
    file = tmp_path / "recipe.yaml"
    file.write_text("base: b\nagents: {code: c}\nmethod: ties\ninputs: {untie: true, missing: base}\nseed: 3\n")
    recipe = recipe_of(str(file), "--extra", "ignore", "--agent", "tool=t")
    assert (recipe.inputs.untie, recipe.inputs.missing, recipe.inputs.extra) == (True, "base", "ignore")
    assert (recipe.agent_names, recipe.method.name, recipe.seed) == (("tool",), "ties", 3)


def test_a_complaint_carries_the_path_of_the_field(tmp_path, recipe_of):
    with pytest.raises(RecipeError, match=r"^options: seed: .* found 'much'\.$"):
        recipe_of("--base", "b", "--agent", "a=x", "--seed", "much")
    with pytest.raises(RecipeError, match=r"^options: base: String should have at least 1 character"):
        recipe_of("--base", "", "--agent", "a=x")
    (tmp_path / "r.yaml").write_text("base: b\nagents: {a: x}\n")
    with pytest.raises(RecipeError, match=r"r\.yaml: run\.workers: .*, found '0'\. It may also be 'auto'\.$"):
        recipe_of(str(tmp_path / "r.yaml"), "--workers", "0")


def test_a_parameter_of_the_command_keeps_its_name_and_default():
    @takes_recipe("seed")
    def command(recipe: Recipe, out: Annotated[str, typer.Option()], twice: bool = False) -> None:
        """Do it."""

    named = ("base", "agent", "weight", "method", "set_")
    assert list(command.__annotations__) == ["out", "recipe", *named, "seed", "twice"]
    assert command.__doc__ == "Do it."


@pytest.fixture
def recipe_of():
    """The recipe that a command gets from these words."""

    def call(*words: str) -> Recipe:
        seen: list[Recipe] = []

        @takes_recipe(*SECTIONS, "onto", "keep", "seed")
        def command(recipe: Recipe) -> None:
            seen.append(recipe)

        one = typer.Typer(add_completion=False)
        one.command()(command)
        typer.main.get_command(one)(list(words), standalone_mode=False)
        return seen[0]

    return call


# the fields say what they are


def test_every_field_says_what_it_is():
    assert [path for path, field in FIELDS.items() if not field.meaning.endswith(".")] == []
    assert {"agents.NAME.weight", "rules.N.skip", "output.dtype", "run.block_size"} <= FIELDS.keys()


def test_a_default_is_written_as_a_recipe_reads_it():
    minimal = {"base": "b", "agents": {"a": "x"}, "method": "ram"}
    written = {
        section: {f.name: yaml.safe_load(f.default) for f in FIELDS.values() if f.section == section}
        for section in SECTIONS
    }
    assert Recipe.parse({**minimal, **written, "seed": FIELDS["seed"].default}) == Recipe.parse(minimal)
    assert parse_size(FIELDS["output.shard_size"].default) == 5 * 10**9


def test_words_that_may_be_written_are_those_the_model_takes():
    assert FIELDS["output.dtype"].values == ("base", "float32", "float16", "bfloat16")
    assert FIELDS["run.workers"].values == ("auto", "<integer>")
    assert FIELDS["run.block_size"].values == ("auto", "<size>")
    assert FIELDS["run.survey"].values == ("<text>", "null")


def test_the_table_has_a_row_per_field():
    header, rule, *rows = recipe_table().splitlines()
    assert header == "| section | field | values | default | meaning |"
    assert len(rows) == len(FIELDS)
    assert all(row.replace("\\|", "").count("|") == rule.count("|") for row in rows)
    assert "| `output` | `shard_size` | size | `5GB` | Largest number of data bytes in a shard. |" in rows


def test_the_schema_says_the_same(run):
    schema = json.loads(run("schema").out)
    described = {name: schema["$defs"][model.__name__]["properties"] for name, model in SECTIONS.items()}
    described[""] = schema["properties"]
    for path in SETTABLE | {"agents", "method", "rules"}:
        assert described[FIELDS[path].section][FIELDS[path].name]["description"] == FIELDS[path].meaning


# the commands


@pytest.mark.parametrize("command", COMMANDS)
def test_the_line_in_the_help_is_the_first_of_the_docstring(command):
    assert (function_of(command).__doc__ or "").splitlines()[0] == COMMANDS[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_has_more_than_ten_parameters_but_the_recipes(command):
    written = inspect.unwrap(function_of(command))
    assert written.__code__.co_argcount <= 10


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"schema"}))
def test_every_command_prints_json(command):
    assert parameters(command)["json"].opts == ["--json"]
