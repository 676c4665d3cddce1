"""What every measurement on an agent's own rollouts begins with: options, checks before torch, and the tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, Self, TypeVar

from pydantic import BeforeValidator, Field, ValidationError

from agentmerge._version import __version__
from agentmerge.errors import MergeError, Note, RecipeError, SourceError, Where, did_you_mean, problems_of
from agentmerge.files.destination import Destination
from agentmerge.files.paths import expanded
from agentmerge.files.protected import Protected
from agentmerge.files.staging import Staging
from agentmerge.frozen import Frozen
from agentmerge.importance.data import in_turn, read_examples, sha256_of
from agentmerge.importance.record import DataFacts, Measured, ModelFacts, Settings
from agentmerge.importance.tokens import encode
from agentmerge.machine import how_to_install
from agentmerge.sources.beside import has_tokenizer, read_config
from agentmerge.sources.opening import opened
from agentmerge.tensors import dtype_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import ModuleType

    from agentmerge.importance.tokens import Corpus
    from agentmerge.progress import Watch
    from agentmerge.sources.source import Source

INSTALL = how_to_install("importance")


class Asked(Frozen):
    """What a model is given to read, and what reads it."""

    command: ClassVar[str]
    """Whose options they are."""
    torch: ClassVar[str]
    """The file that measures, which imports torch."""
    prompts: ClassVar[bool] = False
    """Whether a line may be a prompt without a response, and skills are taken in turn."""

    examples: int = Field(default=256, ge=1)
    """How many: the first of the file that fit."""
    max_length: int = Field(default=2048, ge=2)
    """Tokens of prompt and response together; a longer prompt loses its beginning."""
    chat: bool = False
    """Treat a plain prompt as one user message."""
    device: str = "auto"
    """auto, cpu or cuda."""
    dtype: Annotated[str, BeforeValidator(dtype_name)] = "auto"
    """Of weights and gradients: bfloat16, float32 or float64; auto is bfloat16 on cuda, float32 elsewhere."""

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Check values.

        Raises:
            RecipeError: one is out of its range.
        """
        try:
            return cls(**values)
        except ValidationError as error:
            raise RecipeError(*problems_of(error, f"{cls.command}: ", {})) from None


class Options(Asked):
    """What to measure and how."""

    command: ClassVar[str] = "importance"
    torch: ClassVar[str] = "importance.fisher"

    every: float = Field(default=10.0, ge=0)
    """Minutes of work between two saves, to resume from; changes no byte of the result."""


Given = TypeVar("Given", bound=Options)
G_contra = TypeVar("G_contra", bound=Options, contravariant=True)
R = TypeVar("R", bound=Measured)
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True)
class Prepared:
    """An open model and the tokens to be put through it."""

    source: Source
    torch: ModuleType
    settings: Settings
    corpus: Corpus
    model: ModelFacts
    data: DataFacts

    @property
    def versions(self) -> dict[str, str]:
        """Of what computes."""
        return {"agentmerge": __version__, **self.torch.VERSIONS}

    def identity(self, options: Options) -> dict[str, Any]:
        """What the result depends on beside the weights and what is measured."""
        config = json.dumps(read_config(self.source.folder.path), sort_keys=True)
        return {
            "config": sha256(config.encode()).hexdigest(),
            "data": self.data.sha256,
            "tokens": self.corpus.sha256,
            "examples": options.examples,
            "settings": self.settings.model_dump(),
            "versions": self.versions,
        }

    @property
    def notes(self) -> list[Note]:
        """What is to be said of the data."""
        data, length, notes = self.data, self.settings.max_length, []
        if data.examples < data.wanted:
            used = f"{data.path}: {data.examples} examples can be used, {data.wanted} were asked for: used all"
            notes.append(Note(used, where=Where(path=data.path)))
        if data.cut:
            notes.append(Note(f"{data.cut} prompts lost their beginning to fit --max-length {length}"))
        if data.skipped:
            notes.append(Note(f"{data.skipped} examples skipped: the response leaves --max-length {length}"))
        return notes


class Job(Protocol[R_co]):
    """One measurement with everything it depends on."""

    def run(self, out: Path, overwrite: bool, watch: Watch | None) -> R_co:
        """Resume or begin, and finish."""


class JobType(Protocol[G_contra, R]):
    """A class of jobs."""

    record: type[R]

    def __call__(self, work: Prepared, options: G_contra) -> Job[R]:
        """One of them, for which the model is loaded."""

    @staticmethod
    def identity(work: Prepared, options: G_contra) -> dict[str, Any]:
        """What the result depends on."""


def measured(
    job: JobType[Given, R],
    model: str | Path,
    data: Path,
    out: Path,
    options: Given,
    *,
    overwrite: bool,
    again: bool,
    watch: Watch | None,
) -> R:
    """Open a model, make a job of it and run it; see `measure` and `measure_grams`, which say what each argument is."""
    data, out = expanded(data), expanded(out)
    with opened(None, str(model)) as source:
        kept = again and not overwrite and (out / job.record.FILE).is_file()
        work = prepared(source, data, out, options, overwrite=overwrite or kept)
        if kept:
            if (found := _finished(out, job.record, digest(job.identity(work, options)))) is not None:
                return found
            Staging(out, overwrite=False)
        made = job(work, options)
        source.identity.restat()
        return made.run(out, overwrite, watch)


def digest(identity: Mapping[str, Any]) -> str:
    """SHA-256 of what a result depends on."""
    return sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _finished(out: Path, record: type[R], identity: str) -> R | None:
    """What lies in a folder, where that is this measurement and nothing of it was changed since; else None."""
    try:
        found, written = record.load(out), (out / record.FILE).stat().st_mtime_ns
        with opened(None, str(out)) as result:
            untouched = all(file.mtime_ns <= written for file in result.identity.files)
    except (OSError, ValidationError, MergeError):
        return None
    return found if untouched and found.identity == identity else None


def prepared(source: Source, data: Path, out: Path, options: Options, *, overwrite: bool) -> Prepared:
    """Check everything that can be told before the model is loaded, and encode the examples.

    Args:
        source: the model, open.
        data: JSON lines, see data.py.
        out: where the result goes.
        options: what to measure and how.
        overwrite: what is at `out` may be replaced.

    Raises:
        MergeError: whatever is wrong with the inputs or the settings, or torch is not installed.
    """
    check_model(source)
    _check_out(source, data, out, overwrite)
    examples = in_turn(read_examples(data, answered=False)) if options.prompts else read_examples(data)
    first = list(islice(examples, options.examples))  # before torch is imported: a bad line is told at once
    torch = torch_file(options)
    settings = settings_of(options, torch)
    check_tokenizer(source.folder.path)
    corpus = encode(
        chain(first, examples),
        torch.load_tokenizer(source.folder.path),
        data,
        wanted=options.examples,
        max_length=options.max_length,
        chat=options.chat,
    )
    model = ModelFacts(source=source.text, files=source.identity.as_json()["files"])
    return Prepared(source, torch, settings, corpus, model, _data_facts(data, options, corpus))


def check_model(source: Source) -> None:
    """Raise SourceError where transformers can't load a source, as far as it can be told before."""
    config, where = read_config(source.folder.path), Where(source=source.text)
    if not config:
        lacking, expected = f"{source.folder.path}: no config.json", "a model that transformers can load"
        raise SourceError(lacking, expected=expected, where=where)
    if "quantization_config" in config:
        expected = "float weights"
        raise SourceError(f"{source.text}: is quantised", expected=expected, where=where)
    if not source.folder.whole:
        raise SourceError(f"{source.text}: is one file", expected="the model's folder", where=where)


def _check_out(source: Source, data: Path, out: Path, overwrite: bool) -> None:
    read, place = Protected(), Destination(out)
    read.add_folder(source.folder.path, "the model")
    read.add_file(data, "the rollouts")
    read.refuse(out, place.out, place.folder, place.aside.folder)
    Staging(out, overwrite=overwrite)


def check_tokenizer(folder: Path) -> None:
    """Raise SourceError where there is none: transformers would make an empty one, of which no text has a token."""
    if not has_tokenizer(folder):
        todo = "Copy the tokenizer's files of its base there."
        raise SourceError(f"{folder}: the folder has no tokenizer", todo=todo, where=Where(path=str(folder)))


def torch_file(options: Asked) -> ModuleType:
    """The file that measures, imported only now, as it imports torch."""
    try:
        return import_module(f"agentmerge.{options.torch}")
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in {"torch", "transformers"}:
            raise
        needs = f"`agentmerge {options.command}` needs {error.name}, which is not installed"
        raise MergeError(f"{needs}: {INSTALL}") from None


def settings_of(options: Asked, torch: ModuleType) -> Settings:
    """Where and in which dtype is computed.

    Raises:
        RecipeError: an unknown word, or cuda where there is none.
    """
    for name, value, known in (("device", options.device, torch.DEVICES), ("dtype", options.dtype, torch.DTYPES)):
        if value not in {"auto", *known}:
            hint = did_you_mean(value, {"auto", *known}).strip()
            raise RecipeError(f"--{name}: '{value}' is unknown", todo=hint, where=Where(path=name))
    device = torch.choose_device(options.device)
    dtype = {"cpu": "float32", "cuda": "bfloat16"}[device] if options.dtype == "auto" else options.dtype
    return Settings(max_length=options.max_length, chat=options.chat, device=device, dtype=dtype)


def _data_facts(path: Path, options: Options, corpus: Corpus) -> DataFacts:
    return DataFacts(
        path=str(path),
        sha256=sha256_of(path),
        wanted=options.examples,
        examples=len(corpus.examples),
        prompt_tokens=sum(len(example.prompt) for example in corpus.examples),
        response_tokens=sum(len(example.response) for example in corpus.examples),
        cut=sum(example.cut for example in corpus.examples),
        skipped=corpus.skipped,
    )
