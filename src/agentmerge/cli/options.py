"""The options that merge and probe share, and the recipe that they make. Knows no work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from agentmerge.recipe import Recipe

RecipeFile = Annotated[Path | None, typer.Argument(help="YAML file; options given beside it win.", show_default=False)]
Base = Annotated[str | None, typer.Option(help="The agents' common ancestor: a folder.", show_default=False)]
Agents = Annotated[
    list[str] | None,
    typer.Option("--agent", metavar="NAME=SOURCE", help="An agent; repeat.", show_default=False),
]
Method = Annotated[str | None, typer.Option(help="See `agentmerge methods`.", show_default=False)]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="A setting of the method; repeat.", show_default=False),
]
Missing = Annotated[str | None, typer.Option(help="A tensor an agent lacks: error or base.", show_default="error")]
Extra = Annotated[str | None, typer.Option(help="A tensor the base lacks: error or ignore.", show_default="error")]
Vocab = Annotated[
    str | None,
    typer.Option(help="Vocabularies of other sizes: strict, base-rows or union.", show_default="strict"),
]
Rope = Annotated[str | None, typer.Option(help="Other rotary embeddings: error or base.", show_default="error")]
Untie = Annotated[bool, typer.Option("--untie", help="Give the output a head of its own.")]
Unchanged = Annotated[
    str | None, typer.Option(help="An agent equal to the base: error or allow.", show_default="error")
]
Workers = Annotated[str | None, typer.Option(help="Threads.", show_default="one per CPU")]
BlockSize = Annotated[
    str | None,
    typer.Option(help="Bytes of the base per block.", show_default="8MB, less where many workers hold many agents"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]


def inputs(
    missing: str | None,
    extra: str | None,
    unchanged: str | None,
    vocab: str | None,
    rope: str | None,
    untie: bool,
    tokenizer_from: str | None = None,
) -> dict[str, Any]:
    """The recipe's section `inputs` from its options; None where one was not given."""
    return {
        "missing": missing,
        "extra": extra,
        "unchanged": unchanged,
        "vocab": vocab,
        "rope": rope,
        "untie": untie or None,
        "tokenizer_from": tokenizer_from,
    }


def build_recipe(
    recipe: Path | None,
    *,
    base: str | None,
    agents: list[str] | None,
    method: str | None,
    settings: list[str] | None,
    sections: dict[str, dict[str, Any]],
    seed: int | None = None,
) -> Recipe:
    """The recipe of a file, of options, or of a file that options change.

    Args:
        recipe: a YAML file.
        base: replaces the file's.
        agents: "name=source" each; replace the file's agents when given.
        method: a name; replaces the file's method and its settings.
        settings: "field=value" each; replace single settings.
        sections: further values by section; None means not given.
        seed: replaces the file's.

    Raises:
        RecipeError: with the path of what is wrong.
    """
    from agentmerge.errors import RecipeError
    from agentmerge.recipe import Recipe, read_yaml

    data = read_yaml(recipe) if recipe is not None else {}
    if not isinstance(data, dict):
        raise RecipeError(f"{recipe}: expected a mapping with base, agents and method, found {data!r:.80}.")
    if recipe is None and (base is None or not agents):
        raise RecipeError("Nothing to merge: give a recipe file, or --base SOURCE and --agent NAME=SOURCE.")
    data |= {key: value for key, value in {"base": base, "seed": seed}.items() if value is not None}
    if agents:
        data["agents"] = _pairs(agents, "--agent", "NAME=SOURCE")
    chosen = method or data.get("method", "ram_plus")
    chosen = {"name": chosen} if isinstance(chosen, str) else chosen
    data["method"] = (
        {**chosen, **_pairs(settings or [], "--set", "FIELD=VALUE")} if isinstance(chosen, dict) else chosen
    )
    for section, values in sections.items():
        given = {key: value for key, value in values.items() if value is not None}
        found = data.get(section) or {}
        if given and isinstance(found, dict):  # anything else the recipe's own check complains of
            data[section] = {**found, **given}
    return Recipe.parse(data, str(recipe) if recipe is not None else "options")


def parse_sweep(text: str) -> tuple[str, list[str]]:
    """The field and the values of "rescale=0,0.1,0.2".

    Raises:
        RecipeError: it has another form, or a value stands twice.
    """
    from agentmerge.errors import RecipeError

    field, found, rest = text.partition("=")
    values = rest.split(",")
    if not (found and field and all(values)) or len(set(values)) < len(values):
        raise RecipeError(f"--sweep {text}: expected FIELD=V1,V2,... with different values.")
    return field, values


def _pairs(texts: list[str], option: str, form: str) -> dict[str, str]:
    from agentmerge.errors import RecipeError

    pairs: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition("=")
        if not (found and name and value):
            raise RecipeError(f"{option} {text}: expected {form}.")
        if name in pairs:
            raise RecipeError(f"{option} {text}: '{name}' is given twice.")
        pairs[name] = value
    return pairs
