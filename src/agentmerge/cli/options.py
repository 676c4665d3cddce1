"""Options made from the fields of models, and the values that they give: a Recipe, or settings of another kind.

A command is a function whose first parameter is such a value, followed by parameters of its own; a decorator puts
options in the place of the first.
"""

from __future__ import annotations

import inspect
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentmerge.cli.fields import ModelField, fields_of, recipe_fields
from agentmerge.cli.recipes import METHOD, build_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentmerge.frozen import Frozen
    from agentmerge.recipe import Recipe

    Command = Callable[..., None]

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace OUT once the new one is whole.")]
Public = Annotated[bool, typer.Option("--public", help="Let everybody see a repository that is made.")]

SHORTHANDS: dict[str, Any] = {
    "recipe": Annotated[
        Path | None, typer.Argument(help="YAML file; options given beside it win.", show_default=False)
    ],
    "agent": Annotated[
        list[str] | None,
        typer.Option("--agent", metavar="NAME=SOURCE", help="An agent; repeat.", show_default=False),
    ],
    "weight": Annotated[
        list[str] | None,
        typer.Option("--weight", metavar="NAME=NUMBER", help="The weight of an agent; repeat.", show_default=False),
    ],
    "method": Annotated[
        str | None,
        typer.Option("--method", metavar="NAME", help="See `agentmerge methods`.", show_default=METHOD),
    ],
    "set_": Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A setting of the method; repeat.", show_default=False),
    ],
}
"""What the command line has for the fields that one word can't give: file, agents, method and its settings."""


def takes_recipe(*sections: str, without: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Options in place of a command's first parameter, a Recipe: a file, the shorthands, and an option per field.

    Args:
        sections: "output" for every field of a section, "seed" or "run.workers" for one field; the base, the agents
            and the method are always there.
        without: paths of fields to leave out.
    """
    wanted = [field for field in recipe_fields() if {field.path, field.section} & {"base", *sections}]
    fields = {field.name: field for field in wanted if field.path not in without}
    made = {**SHORTHANDS, **{name: _text_option(field) for name, field in fields.items()}}
    order = dict.fromkeys(("recipe", "base", "agent", "weight", "method", "set_", *fields))

    def recipe_of(given: dict[str, Any]) -> Recipe:
        values = {field.path: None if given[name] is False else given[name] for name, field in fields.items()}
        words = (given["agent"], given["method"], given["set_"], given["weight"])
        return build_recipe(given["recipe"], values, *words)

    return in_place_of_the_first([_parameter(name, made[name]) for name in order], recipe_of)


def takes_settings(model: type[Frozen], make: Callable[..., Any]) -> Callable[[Command], Command]:
    """Options in place of a command's first parameter, a value of plain numbers, words and flags.

    Args:
        model: whose fields are the options.
        make: called with the fields as keywords.
    """
    added = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=model.model_fields[field.name].default,
            annotation=Annotated[
                model.model_fields[field.name].annotation, typer.Option(_name(field), help=field.meaning)
            ],
        )
        for field in fields_of(model)
    ]
    return in_place_of_the_first(added, lambda given: make(**given))


def in_place_of_the_first(
    added: Sequence[inspect.Parameter], make: Callable[[dict[str, Any]], Any]
) -> Callable[[Command], Command]:
    """Parameters in place of a command's first, which is made of what they are given."""

    def decorate(command: Command) -> Command:
        first, *own = inspect.signature(command, eval_str=True).parameters.values()

        @wraps(command)
        def run(**given: Any) -> None:
            mine = {one.name: given.pop(one.name) for one in own}
            command(**{first.name: make(given)}, **mine)

        required = [one for one in own if one.default is one.empty]
        ordered = [*required, *added, *(one for one in own if one not in required)]
        ordered = [one.replace(kind=one.KEYWORD_ONLY) for one in ordered]
        run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in ordered}
        return run

    return decorate


def _name(field: ModelField) -> str:
    return f"--{field.name.replace('_', '-')}"


def _text_option(field: ModelField) -> Any:
    """The option of a recipe's field: a flag, or text that the recipe's own check reads."""
    if field.flag:
        return Annotated[bool, typer.Option(_name(field), help=field.meaning)]
    values = [value for value in field.values if value != "null"]
    metavar = values[0] if len(values) == 1 and values[0].startswith("<") else f"[{'|'.join(values)}]"
    default = False if field.default in ("", "null") else field.default
    return Annotated[str | None, typer.Option(_name(field), metavar=metavar, help=field.meaning, show_default=default)]


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    default = False if annotation.__origin__ is bool else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
