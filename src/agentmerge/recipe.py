"""What the user wrote: YAML or keywords into a checked Recipe. Knows no files but the recipe's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    field_validator,
    model_validator,
)

from agentmerge.errors import RecipeError, complaints, did_you_mean
from agentmerge.files.documents import parse_yaml
from agentmerge.frozen import Settings
from agentmerge.methods.base import MergeMethod
from agentmerge.methods.registry import known_methods, resolve_method

OUTPUT_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Recipe spelling to safetensors spelling; "base" means each tensor's own dtype."""

AgentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=64)]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _whole_size(value: Any) -> Any:
    """ByteSize reads the beginning of "5GB/s"; a size has nothing behind its unit."""
    if isinstance(value, str) and not re.fullmatch(r"\s*\d+(\.\d+)?\s*[A-Za-z]*\s*", value):
        raise ValueError("expected a size such as 5GB, 8MB or 1GiB")
    return value


Size = Annotated[ByteSize, BeforeValidator(_whole_size)]


class AgentSource(Settings):
    """Where an agent is, and its weight."""

    source: str = Field(min_length=1)
    weight: float = 1.0
    importance: str | None = None
    """Its diagonal Fisher, one array per tensor: a folder or file that `agentmerge importance` wrote."""


class Rule(Settings):
    """Other settings for the tensors a glob matches; later rules win."""

    model_config = ConfigDict(extra="allow")

    tensors: str = Field(min_length=1)
    take: str | None = None
    """"base" or an agent's name: the tensor is copied from there."""
    skip: Annotated[tuple[str, ...], BeforeValidator(_as_list)] = ()
    """Agents that count as unchanged here."""

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the method that this rule replaces."""
        return dict(self.model_extra or {})

    def applied_to(self, method: MergeMethod, where: str = "rule") -> MergeMethod:
        """The method with this rule's settings in place of its own.

        Raises:
            RecipeError: an unknown setting or a value out of range, with its path.
        """
        known = {*type(method).model_fields, *Rule.model_fields} - {"name"}
        unknown = [field for field in self.settings if field not in known]
        if unknown:
            lines = (f"{where}.{field}: unknown field.{did_you_mean(field, known)}" for field in unknown)
            raise RecipeError("\n".join(lines))
        return method.varied(self.settings, where) if self.settings else method


class Inputs(Settings):
    """What to do where the inputs are not alike."""

    missing: Literal["error", "base"] = "error"
    extra: Literal["error", "ignore"] = "error"
    unchanged: Literal["error", "allow"] = "error"
    vocab: Literal["strict", "base-rows", "union"] = "strict"
    """When vocabularies have different numbers of rows: stop, keep the base's rows, or add those of one agent."""
    rope: Literal["error", "base"] = "error"
    """When an agent has other rotary embeddings: stop, or merge under the base's."""
    untie: bool = False
    """Give the output a head of its own where the base ties it to the embedding."""
    tokenizer_from: str = "base"


class Output(Settings):
    """How the result is stored."""

    dtype: Literal["base", "float32", "float16", "bfloat16"] = "base"
    rounding: Literal["nearest", "stochastic"] = "nearest"
    shard_size: Size = Field(default=ByteSize(5_000_000_000), ge=1, validate_default=True)
    """Largest number of data bytes in a shard."""


class Run(Settings):
    """How the work is done; nothing here changes a byte of the result."""

    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = "auto"
    block_size: Literal["auto"] | Annotated[Size, Field(ge=4000)] = "auto"
    """Bytes of the base that one block holds."""
    runner: Literal["local"] = "local"
    survey: str | None = None
    """A saved survey (probe --json) to use instead of folding again."""
    allow_slow: bool = False
    """Start although the arithmetic takes hours on processors."""


class Recipe(Settings):
    """Everything a merge depends on; `Recipe.load(path)` reads YAML, `Recipe.parse(mapping)` plain data."""

    base: str = Field(min_length=1)
    agents: dict[AgentName, AgentSource] = Field(min_length=1)
    method: SerializeAsAny[MergeMethod]
    rules: tuple[Rule, ...] = ()
    inputs: Inputs = Inputs()
    output: Output = Output()
    seed: int = Field(default=0, ge=0, lt=2**64)
    run: Run = Run()

    @field_validator("agents", mode="before")
    @classmethod
    def _plain_sources(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: {"source": agent} if isinstance(agent, str) else agent for name, agent in value.items()}

    @field_validator("method", mode="before")
    @classmethod
    def _resolved(cls, value: Any) -> Any:
        return value if isinstance(value, MergeMethod) else resolve_method(value)

    @model_validator(mode="after")
    def _seeded(self) -> Self:
        object.__setattr__(self, "method", self.method.seeded(self.seed))
        return self

    @model_validator(mode="after")
    def _names_known(self) -> Self:
        if "base" in self.agents:
            raise RecipeError("agents.base: 'base' is the base's own name. Give this agent another name.")
        weights = {name: agent.weight for name, agent in self.agents.items()}
        self.method.check(weights)
        _check_name("inputs.tokenizer_from", self.inputs.tokenizer_from, ("base", *self.agents))
        for i, rule in enumerate(self.rules):
            if rule.take is not None:
                _check_name(f"rules.{i}.take", rule.take, ("base", *self.agents))
            for name in rule.skip:
                _check_name(f"rules.{i}.skip", name, self.agents)
            rule.applied_to(self.method, f"rules.{i}").check(weights)
        return self

    @model_validator(mode="after")
    def _importance_given(self) -> Self:
        lacking = [name for name in self.agent_names if self.agents[name].importance is None]
        if "importance" in self.method.reads and lacking:
            raise RecipeError(
                f"agents.{lacking[0]}.importance: missing, method '{self.method.name}' reads the importance of every "
                "agent. Make it with `agentmerge importance`."
            )
        return self

    @classmethod
    def parse(cls, data: Any, where: str = "recipe") -> Recipe:
        """Check plain data.

        Raises:
            RecipeError: every complaint on a line of its own, with its path.
        """
        if not isinstance(data, dict):
            raise RecipeError(f"{where}: expected a mapping with base, agents and method, found {data!r:.80}.")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise RecipeError(complaints(error, f"{where}: ", _known_fields(data))) from None

    @classmethod
    def load(cls, path: Path | str) -> Recipe:
        """Read a YAML file.

        Raises:
            RecipeError: the file is not there, is no YAML, or its content is wrong.
        """
        return cls.parse(read_yaml(Path(path)), str(path))

    def with_method(self, settings: dict[str, Any]) -> Recipe:
        """This recipe with some of its method's settings replaced.

        Raises:
            RecipeError: an unknown setting or a value out of range; the name, which brings settings of its own.
        """
        if "name" in settings:
            raise RecipeError("method.name: is no setting, as every method has its own. Write a recipe for each.")
        return Recipe.parse({**self.dump(), "method": {**self.method.model_dump(mode="json"), **settings}})

    def dump(self) -> dict[str, Any]:
        """The recipe as plain data that `parse` reads back."""
        return self.model_dump(mode="json")

    @property
    def agent_names(self) -> tuple[str, ...]:
        """The agents' names, sorted: the order of every sum."""
        return tuple(sorted(self.agents))


def recipe_schema() -> dict[str, Any]:
    """JSON Schema of a recipe, with every known method and the short forms that YAML may use."""
    schema = Recipe.model_json_schema()
    methods = {method.__name__: method.model_json_schema() for method in known_methods().values()}
    aliases = [alias for method in known_methods().values() for alias in method.aliases]
    names = sorted({*known_methods(), *aliases})
    schema["$defs"] |= methods
    schema["properties"]["method"] = {"anyOf": [{"enum": names}, *({"$ref": f"#/$defs/{name}"} for name in methods)]}
    agents = schema["properties"]["agents"]["patternProperties"]
    for pattern, source in agents.items():
        agents[pattern] = {"anyOf": [{"type": "string"}, source]}
    return schema


def read_yaml(path: Path) -> Any:
    """One YAML document; a key that stands twice is an error, not a silent overwrite."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such recipe file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: can't be read as a recipe: {error}") from None
    try:
        return parse_yaml(text)
    except ValueError as error:
        raise RecipeError(f"{path}: not valid YAML: {error}") from None


def _known_fields(data: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """The fields of every section by its path, for did-you-mean."""
    sections: dict[str, type[BaseModel]] = {"inputs": Inputs, "output": Output, "run": Run, "": Recipe}
    known = {path: tuple(section.model_fields) for path, section in sections.items()}
    agents = data.get("agents")
    for name in agents if isinstance(agents, dict) else ():
        known[f"agents.{name}"] = tuple(AgentSource.model_fields)
    return known


def _check_name(where: str, name: str, known: Any) -> None:
    if name not in known:
        raise RecipeError(f"{where}: no agent '{name}'.{did_you_mean(name, known)}")
