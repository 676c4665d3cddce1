"""From words to what is run: which suites with which settings, and who answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import Field, ValidationError, field_validator

from agentmerge.errors import EvalError, Problem, Where, did_you_mean, problems_of
from agentmerge.eval.generators import GENERATORS, generator_of
from agentmerge.eval.run import Job
from agentmerge.eval.suite import Given
from agentmerge.eval.suites import suite_of
from agentmerge.frozen import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentmerge.eval.generators.generator import Generator
    from agentmerge.eval.suite import Suite


class Options(Settings):
    """Who answers, how, and what is given for all suites."""

    data_dir: Path | None = None
    """Folder of the benchmarks' data files; `agentmerge eval doctor` names them."""
    limit: int | None = Field(default=None, ge=1)
    """Most items of every category, evenly chosen; by default all."""
    score_only: bool = False
    """Score the answers that OUT holds; no model is asked."""
    allow_code_execution: bool = False
    """Let suites run programs that the model wrote."""
    tokenizer: str = ""
    """Folder of the model's tokenizer, where MODEL is none: suites that cut texts by tokens need it."""
    generator: str = "auto"
    """auto, openai, hf, vllm or sglang; auto is openai where a server is given, else hf."""
    server: str = ""
    """Address of an OpenAI-compatible server, for example http://localhost:8000; OPENAI_API_KEY is sent if set."""
    served_name: str = ""
    """What the server calls the model; by default MODEL, or the only one that it serves."""
    concurrency: int = Field(default=32, ge=1)
    """Requests under way at the server at once."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds that the server may take for an answer."""
    server_fields: str = "{}"
    """JSON object sent with every request besides, for example {"repetition_penalty": 1.0}."""
    too_long: str = "stop"
    """What a prompt that the model can't hold does: stop ends the run, empty counts it as answered by nothing."""
    device: str = "auto"
    """Of hf: auto, cpu or cuda."""
    dtype: str = "auto"
    """Of hf, vllm and sglang; auto is float32 for hf on a CPU, else the checkpoint's own."""
    batch: int = Field(default=64, ge=1)
    """Of hf: most requests answered together."""
    gpus: int = Field(default=1, ge=1)
    """Of vllm and sglang: over how many the model is spread."""

    @field_validator("generator")
    @classmethod
    def _known_generator(cls, value: str) -> str:
        if value not in ("auto", *GENERATORS):
            raise EvalError(f"generator: no '{value}'", todo=did_you_mean(value, ("auto", *GENERATORS)).strip())
        return value

    @field_validator("too_long")
    @classmethod
    def _known_way(cls, value: str) -> str:
        if value not in ("stop", "empty"):
            raise EvalError(f"too_long: '{value}'", expected="stop or empty")
        return value

    @field_validator("server_fields")
    @classmethod
    def _object(cls, value: str) -> str:
        try:
            found = json.loads(value)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise EvalError(f"server_fields: {value!r}", expected='a JSON object such as {"repetition_penalty": 1.0}')
        return value

    @classmethod
    def of(cls, **values: Any) -> Options:
        """Check values.

        Raises:
            EvalError: one is out of its range.
        """
        try:
            return cls(**values)
        except ValidationError as error:
            raise EvalError(*problems_of(error, "eval: ", {})) from None

    def given(self, model: str) -> Given:
        """What all suites are given; a folder is its own tokenizer."""
        tokenizer = self.tokenizer or (model if Path(model).is_dir() else None)
        return Given(self.data_dir, tokenizer, self.allow_code_execution)


def make_generator(model: str, options: Options, waiting: Callable[[str, float], None] | None = None) -> Generator:
    """Who answers for a model.

    Args:
        model: its folder, or the name that a server knows it by.
        options: who answers, and how.
        waiting: told why and for how many seconds a server is waited for.

    Raises:
        EvalError: MODEL is no folder and no server is given; the engine is not installed; the server does not tell
            which of its models is meant.
    """
    kind = options.generator
    if kind == "auto":
        kind = "openai" if options.server else "hf"
    if kind == "openai" and not options.server:
        raise EvalError("--generator openai: no server is given", todo="Give its address by --server.")
    if kind != "openai" and options.server:
        raise EvalError(f"--generator {kind}: --server is of no use", todo="Leave one of the two out.")
    if kind != "openai" and not Path(model).is_dir():
        raise EvalError(
            f"{model}: no such folder",
            expected="a checkpoint's folder, or the name of a model together with --server",
            where=Where(path=model),
        )
    return generator_of(kind, model, options, waiting)


def make_jobs(suites: str, preset: str, settings: Sequence[str], given: Given, limit: int | None = None) -> list[Job]:
    """The suites of a command, in its order.

    Args:
        suites: names with commas between.
        preset: of all suites; or SUITE=PRESET with commas between, others being "paper".
        settings: SUITE.FIELD=VALUE each.
        given: what a user gives for all suites.
        limit: most items of a group.

    Raises:
        EvalError: a name, preset or setting is unknown, or a value impossible.
    """
    names = [name.strip() for name in suites.split(",") if name.strip()]
    if not names:
        raise EvalError("--suites: names none", todo="Give at least one, for example --suites bfcl,gsm8k.")
    if len(set(names)) < len(names):
        raise EvalError(f"--suites {suites}: a suite stands twice")
    kinds = {name: suite_of(name) for name in names}
    presets, values = _presets(preset, kinds), _values(settings, kinds)
    return [Job(kind.make(presets[name], given, **values[name]), presets[name], limit) for name, kind in kinds.items()]


def _presets(text: str, kinds: dict[str, type[Suite]]) -> dict[str, str]:
    if "=" not in text:
        return dict.fromkeys(kinds, text)
    found = dict.fromkeys(kinds, "paper")
    for part in text.split(","):
        name, _, preset = part.strip().partition("=")
        if name not in kinds:
            raise EvalError(
                f"--preset {part}: '{name}' is not among the suites", todo=did_you_mean(name, kinds).strip()
            )
        found[name] = preset
    return found


def _values(texts: Sequence[str], kinds: dict[str, type[Suite]]) -> dict[str, dict[str, Any]]:
    """The settings of each suite, as its own check reads them."""
    found: dict[str, dict[str, Any]] = {name: {} for name in kinds}
    problems = []
    for text in texts:
        path, equals, value = text.partition("=")
        name, dot, field = path.partition(".")
        if not (equals and dot and field):
            problems.append(Problem(f"--set {text}", expected="SUITE.FIELD=VALUE"))
        elif name not in kinds:
            todo = did_you_mean(name, kinds).strip()
            problems.append(Problem(f"--set {text}: '{name}' is not among the suites", todo=todo))
        else:
            found[name][field] = _value(value, kinds[name], field)
    if problems:
        raise EvalError(*problems)
    return found


def _value(text: str, kind: type[Suite], field: str) -> Any:
    """Text, null, or a list with commas between where the field is one."""
    if text == "null":
        return None
    known = kind.settings_type.model_fields.get(field)
    kinds = {get_origin(part) for part in (known.annotation, *get_args(known.annotation))} if known else set()
    if not {tuple, list} & kinds:
        return text
    if text.startswith("["):
        try:
            return json.loads(text)
        except ValueError:
            raise EvalError(f"--set {kind.name}.{field}={text}", expected="a JSON list, or texts with commas") from None
    return [part for part in text.split(",") if part]
