"""What the user wrote: YAML or keywords into a checked Recipe.

Every field is declared here once, with its type, default and meaning (the docstring under it): the JSON Schema, the
command line's options and the table in docs/recipe.md are made from these models.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    ByteSize,
    Field,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from agentmerge.errors import RecipeError, Where, did_you_mean, problems_of, shown
from agentmerge.files.core_yaml import parse_core_yaml
from agentmerge.files.documents import parse_yaml
from agentmerge.files.paths import expanded
from agentmerge.frozen import Settings
from agentmerge.methods.base import Context, MergeMethod
from agentmerge.methods.registry import resolve_method
from agentmerge.rule import Rule, check_rules
from agentmerge.tensors import dtype_name
from agentmerge.values import AgentName, PathText, Size, nested, recipe_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

OUTPUT_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Recipe spelling to safetensors spelling; "base" means each tensor's own dtype."""

CONVERT = "agentmerge convert {} --out recipe.yaml"
"""How a recipe is made of a mergekit configuration."""


class AgentSource(Settings):
    """Where an agent is, and its weight."""

    source: PathText = Field(min_length=1)
    """A folder, a single file of weights, or OWNER/MODEL[@REVISION] on the hub."""
    weight: float = 1.0
    """Its coefficient."""
    materialize: Literal["base_dtype", "exact"] = "base_dtype"
    """How an adapter's sum or a trainer's wider parts are read: rounded to the base's dtype as if saved, or exact."""
    importance: PathText | None = None
    """Its diagonal Fisher, one array per tensor: a folder or file that `agentmerge importance` wrote."""
    grams: PathText | None = None
    """The Gram matrices of its layers' inputs: a folder or file that `agentmerge grams` wrote."""


class Inputs(Settings):
    """What to do where the inputs are not alike."""

    missing: Literal["error", "base"] = "error"
    """When an agent lacks a tensor of the base: stop, or count the agent as unchanged there."""
    extra: Literal["error", "ignore"] = "error"
    """When an agent has a tensor that the base lacks: stop, or leave the tensor out."""
    unchanged: Literal["error", "allow"] = "error"
    """When an agent is equal to the base: stop, or merge it all the same."""
    storage_rounding: Literal["ignore", "count"] = "ignore"
    """When an agent's number is the base's in the agent's coarser dtype: ignore it, or count it as a change."""
    vocab: Literal["strict", "base-rows", "union"] = "strict"
    """When vocabularies have different numbers of rows: stop, keep the base's rows, or add those of one agent."""
    rope: Literal["error", "base"] = "error"
    """When an agent has other rotary embeddings: stop, or merge under the base's."""
    measured: Literal["error", "allow"] = "error"
    """When importance, grams or keep were measured on other weights: stop, or merge with them all the same."""
    untie: bool = False
    """Give the output a head of its own where the base ties it to the embedding."""
    tokenizer_from: str = "base"
    """Whose tokenizer and chat template the output gets: base, or an agent's name."""


class Output(Settings):
    """How the result is stored."""

    dtype: Annotated[Literal["base", "float32", "float16", "bfloat16"], BeforeValidator(dtype_name)] = "base"
    """How numbers are stored; base keeps each tensor's own dtype."""
    rounding: Literal["nearest", "stochastic"] = "nearest"
    """To the nearest number of the output dtype (ties to even), or to one of its two neighbours, unbiased."""
    shard_size: Size = Field(default=ByteSize(5_000_000_000), ge=1, validate_default=True)
    """Largest number of data bytes in a shard."""


class Run(Settings):
    """How the work is done; nothing here changes a byte of the result."""

    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = "auto"
    """Threads; auto takes one per CPU."""
    block_size: Literal["auto"] | Annotated[Size, Field(ge=4000)] = "auto"
    """Bytes of the base that one block holds; auto takes 8MB, less where there are many workers or agents."""
    runner: Literal["local"] = "local"
    """Who does the work: local is threads of this process."""
    survey: PathText | None = None
    """A survey that `probe --json FILE` saved, to use instead of folding again."""
    allow_slow: bool = False
    """Start although the arithmetic takes more than ten minutes here."""


SECTIONS: dict[str, type[Settings]] = {"inputs": Inputs, "output": Output, "run": Run}
"""The fields of a recipe that are mappings of fields."""


class Recipe(Settings):
    """Everything a merge depends on; `Recipe.load(path)` reads YAML, `Recipe.parse(mapping)` plain data."""

    base: PathText = Field(min_length=1)
    """The agents' common ancestor: a folder, a single file of weights, or OWNER/MODEL[@REVISION] on the hub."""
    onto: PathText | None = None
    """Another checkpoint of the base's names and shapes, to which what the merge changes of the base is added."""
    keep: PathText | None = None
    """The Gram matrices of the base's inputs on what it must keep doing: what `agentmerge grams` wrote of the base."""
    agents: dict[AgentName, AgentSource] = Field(min_length=1)
    """The agents by name, each as its source alone or as a mapping."""
    method: SerializeAsAny[MergeMethod]
    """The merging rule, as its name alone or as a mapping with its settings; see `agentmerge methods`."""
    rules: tuple[Rule, ...] = ()
    """Other settings for some of the tensors, applied in order and setting by setting."""
    inputs: Inputs = Inputs()
    output: Output = Output()
    seed: int = Field(default=0, ge=0, lt=2**64)
    """Of everything random: DARE and stochastic rounding."""
    run: Run = Run()
    file: ClassVar[Path | None] = None
    """Where it was read from, which no merge may replace."""

    @field_validator("agents", mode="before")
    @classmethod
    def _plain_sources(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            name: {"source": agent} if isinstance(agent, str | os.PathLike) else agent for name, agent in value.items()
        }

    @field_validator("method", mode="before")
    @classmethod
    def _resolved(cls, value: Any) -> Any:
        return value if isinstance(value, MergeMethod) else resolve_method(value)

    @model_validator(mode="wrap")
    @classmethod
    def _made(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        return handler(data).bound()

    @model_validator(mode="after")
    def _names_known(self) -> Self:
        for role in ("base", "onto", "keep"):
            if role in self.agents:
                found, todo = f"agents.{role}: '{role}' is the {role}'s own name", "Give this agent another name."
                raise RecipeError(found, todo=todo, where=Where(path=f"agents.{role}"))
        if self.onto is not None and self.inputs.vocab == "union":
            found = "onto: has no place for the rows that inputs.vocab union adds"
            raise RecipeError(found, todo="Use inputs.vocab strict or base-rows.", where=Where(path="onto"))
        _check_name("inputs.tokenizer_from", self.inputs.tokenizer_from, ("base", *self.agents))
        for i, rule in enumerate(self.rules):
            if rule.take is not None:
                _check_name(f"rules.{i}.take", rule.take, ("base", *self.agents))
            for name in rule.skip:
                _check_name(f"rules.{i}.skip", name, self.agents)
        check_rules(self.rules, self.method, self.context)
        return self

    @model_validator(mode="after")
    def _beside_given(self) -> Self:
        if self.keep is not None and "keep" not in self.method.reads:
            found = f"keep: method '{self.method.name}' has no use for it"
            todo = "Use wudi_auto, wudi or regmean, or leave it out."
            raise RecipeError(found, todo=todo, where=Where(path="keep"))
        for kind in (kind for kind in self.method.reads if kind != "keep"):
            lacking = [name for name in self.agent_names if getattr(self.agents[name], kind) is None]
            if lacking:
                path = f"agents.{lacking[0]}.{kind}"
                found = f"{path}: missing, method '{self.method.name}' reads the {kind} of every agent"
                raise RecipeError(found, todo=f"Make it with `agentmerge {kind}`.", where=Where(path=path))
        return self

    @classmethod
    def parse(cls, data: Any, where: str = "recipe", file: Path | None = None) -> Recipe:
        """Check plain data that may have been read from a file.

        Raises:
            RecipeError: every complaint on a line of its own, with its path.
        """
        if not isinstance(data, dict):
            raise RecipeError(
                f"{where}: expected a mapping with base, agents and method, found {shown(data)}.",
                where=Where(path=where),
            )
        if "merge_method" in data:
            found = f"{where}: this is a mergekit configuration (it has merge_method)"
            name = where if Path(where).exists() else "CONFIG.yml"
            todo = f"Turn it into one first: {CONVERT.format(name)}"
            raise RecipeError(found, expected="a recipe", todo=todo, where=Where(path=where))
        try:
            recipe = cls.model_validate(data)
        except ValidationError as error:
            raise RecipeError(*problems_of(error, f"{where}: ", _known_fields(data))) from None
        recipe.__dict__["file"] = file  # beside the fields: it makes no two recipes different
        return recipe

    @classmethod
    def load(cls, path: Path | str) -> Recipe:
        """Read a YAML file.

        Raises:
            RecipeError: the file is not there, is no YAML, or its content is wrong.
        """
        path = expanded(path)
        return cls.parse(read_recipe(path), str(path), path)

    def with_method(self, settings: dict[str, Any]) -> Recipe:
        """This recipe with some of its method's settings changed, as a rule changes them.

        "then.density" is the density of the inner method, "density.code" that of the agent.

        Raises:
            RecipeError: an unknown setting or a value out of range; the name, which brings settings of its own.
        """
        if "name" in settings:
            found = "method.name: is no setting, as every method has its own"
            raise RecipeError(found, todo="Write a recipe for each.", where=Where(path="method.name"))
        method = self.method.varied(nested(settings)).model_dump(mode="json")
        return Recipe.parse({**self.dump(), "method": method}, file=self.file)

    def dump(self) -> dict[str, Any]:
        """The recipe as plain data that `parse` reads back."""
        return self.model_dump(mode="json")

    def bound(self) -> Self:
        """With a method that knows the seed and the weights; one that knows them already stays as it is.

        Raises:
            RecipeError: the method's settings do not fit the agents.
        """
        return self.model_copy(update={"method": self.method.bind(self.context)})

    @property
    def context(self) -> Context:
        """What the method learns from the rest of the recipe."""
        return Context(self.seed, {n: agent.weight for n, agent in self.agents.items()}, keep=self.keep is not None)

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The agents' names, sorted: the order of every sum."""
        return tuple(sorted(self.agents))


def read_recipe(path: Path) -> Any:
    """The document of a recipe, in YAML 1.2, or that within a merge's record; see `read_yaml` and `recipe_in`."""
    return recipe_in(read_yaml(path, parse_core_yaml), str(path))


def read_yaml(path: Path, parse: Callable[[str], Any] = parse_yaml) -> Any:
    """One YAML document, in 1.1 unless `parse` says otherwise; a key that stands twice is an error.

    Raises:
        RecipeError: the file is not there, or is no such document.
    """
    where = Where(path=str(path))
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such recipe file.", where=where) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: can't be read as a recipe: {error}", where=where) from None
    try:
        return parse(text)
    except ValueError as error:
        todo = f"It holds what mergekit reads: {CONVERT.format(path)}" if "merge_method:" in text else ""
        raise RecipeError(f"{path}: not valid YAML: {error}", todo=todo, where=where) from None


def _known_fields(data: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """The fields of every section by its path, for did-you-mean."""
    known = {path: tuple(section.model_fields) for path, section in SECTIONS.items()} | {"": tuple(Recipe.model_fields)}
    agents = data.get("agents")
    for name in filter(lambda name: isinstance(name, str), agents if isinstance(agents, dict) else ()):
        known[f"agents.{name}"] = tuple(AgentSource.model_fields)
    return known


def _check_name(path: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        hint = did_you_mean(name, known).strip()
        raise RecipeError(f"{path}: no agent '{name}'", todo=hint, where=Where(path=path))
