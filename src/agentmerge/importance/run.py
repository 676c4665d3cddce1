"""From a model and its data to an importance checkpoint: resumable, whole or not there."""

from __future__ import annotations

import json
from hashlib import sha256
from itertools import chain, islice
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from agentmerge._version import __version__
from agentmerge.errors import DataError, MergeError, Note, RecipeError, SourceError, Where, did_you_mean, problems_of
from agentmerge.files.destination import Destination
from agentmerge.files.layout import INDEX, Layout, index_json, plan_layout
from agentmerge.files.protected import Protected
from agentmerge.files.staging import Staging
from agentmerge.files.writer import Writer
from agentmerge.frozen import Frozen
from agentmerge.importance.data import read_examples, sha256_of
from agentmerge.importance.names import match
from agentmerge.importance.record import (
    RECORD,
    DataFacts,
    ImportanceRecord,
    ModelFacts,
    Settings,
    TensorFacts,
)
from agentmerge.importance.store import Progress, SumStore, write_means
from agentmerge.importance.tokens import encode
from agentmerge.machine import how_to_install
from agentmerge.sources.beside import has_tokenizer, read_config
from agentmerge.sources.opening import opened
from agentmerge.tensors import dtype_name

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from agentmerge.importance.fisher import Fisher
    from agentmerge.importance.names import Match
    from agentmerge.importance.tokens import Corpus
    from agentmerge.progress import Watch
    from agentmerge.sources.source import Source

SHARD_SIZE = 5_000_000_000
"""Most bytes of data in a file of the output."""
INSTALL = how_to_install("importance")


class Options(Frozen):
    """What to measure and how."""

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
    every: float = Field(default=10.0, ge=0)
    """Minutes of work between two saves, to resume from; changes no byte of the result."""

    @classmethod
    def of(cls, **values: Any) -> Options:
        """Check values.

        Raises:
            RecipeError: one is out of its range.
        """
        try:
            return cls(**values)
        except ValidationError as error:
            raise RecipeError(*problems_of(error, "importance: ", {})) from None


def measure(
    model: str | Path, data: Path, out: Path, options: Options, *, overwrite: bool = False, watch: Watch | None = None
) -> ImportanceRecord:
    """Write the diagonal empirical Fisher of an agent on its own prompts and responses.

    F = (1/n) sum over n examples of (d/d theta of the sum over response tokens of log p(token | prefix))^2

    A killed run resumes when it is started again, on a CPU to the same bytes.

    Args:
        model: a folder with config, tokenizer and safetensors.
        data: JSON lines, see data.py.
        out: appears when it is whole: float32 safetensors in the names and shapes of the model, and importance.json.
        options: what to measure and how.
        overwrite: replace what is at `out` at the end, and start over where unfinished work is of another input.
        watch: told of the progress, in tokens.

    Raises:
        MergeError: whatever is wrong with the inputs, the settings or the disk.
    """
    with opened(None, str(model)) as source:
        _check(source, data, out, overwrite)
        examples = read_examples(data)
        first = list(islice(examples, options.examples))  # before torch is imported: a bad line is told at once
        torch = _torch()
        settings = _settings(options, torch)
        _check_tokenizer(source)
        corpus = encode(
            chain(first, examples),
            torch.load_tokenizer(source.folder.path),
            data,
            wanted=options.examples,
            max_length=options.max_length,
            chat=options.chat,
        )
        job = _Job(source, data, options, settings, corpus, torch)
        source.identity.restat()
        return job.run(out, overwrite, watch)


class _Job:
    """One measurement with everything it depends on."""

    def __init__(
        self,
        source: Source,
        data: Path,
        options: Options,
        settings: Settings,
        corpus: Corpus,
        torch: ModuleType,
    ) -> None:
        self.source, self.options, self.settings, self.corpus = source, options, settings, corpus
        self.versions = {"agentmerge": __version__, **torch.VERSIONS}
        self.model = ModelFacts(source=source.text, files=source.identity.as_json()["files"])
        self.data = _data_facts(data, options, corpus)
        self.fisher: Fisher = torch.Fisher(source.folder.path, settings.device, settings.dtype)
        self.match: Match = match(source.specs, self.fisher.names(), source.text)
        self.layout: Layout = plan_layout(self.match.specs, SHARD_SIZE)

    @property
    def identity(self) -> dict[str, Any]:
        """What the result depends on."""
        return {
            "importance_of": self.model.files,
            "config": sha256(json.dumps(read_config(self.source.folder.path), sort_keys=True).encode()).hexdigest(),
            "data": self.data.sha256,
            "tokens": self.corpus.sha256,
            "examples": self.options.examples,
            "settings": self.settings.model_dump(),
            "versions": self.versions,
        }

    def run(self, out: Path, overwrite: bool, watch: Watch | None) -> ImportanceRecord:
        """Resume or begin, and finish."""
        identity = self.identity
        work = sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        with Writer(out, self.layout, identity, overwrite=overwrite) as writer:
            store = SumStore(writer.folder, self.fisher.specs, work)
            try:
                likelihood = self._sum(store, watch)
            except DataError as error:
                store.drop()
                writer.refuse(str(error))
                raise
            self.source.identity.restat()
            zero = write_means(writer, self.layout, self.fisher.stored_sums(), len(self.corpus.examples))
            record = self._record(zero, likelihood)
            index = index_json(self.layout)
            writer.finish({RECORD: record.dump(), **({INDEX: index} if index is not None else {})})
        return record

    def _sum(self, store: SumStore, watch: Watch | None) -> float:
        """Every example that no earlier run finished; the log-likelihood of all."""
        done, saved = self._resumed(store), monotonic()
        examples = self.corpus.examples
        if watch is not None:
            watch.begin("importance, tokens", self.corpus.tokens)
            watch.advance(sum(example.tokens for example in examples[: done.examples]))
        for i in range(done.examples, len(examples)):
            done = Progress(i + 1, done.log_likelihood + self.fisher.observe(examples[i]))
            if monotonic() - saved >= 60 * self.options.every and done.examples < len(examples):
                store.save(self.fisher.sums(), done)
                saved = monotonic()
            if watch is not None:
                watch.advance(examples[i].tokens)
        return done.log_likelihood

    def _resumed(self, store: SumStore) -> Progress:
        saved = store.load()
        if saved is None:
            return Progress()
        done, sums = saved
        self.fisher.restore(sums)
        return done

    def _record(self, zero: list[str], likelihood: float) -> ImportanceRecord:
        return ImportanceRecord(
            model=self.model,
            data=self.data,
            settings=self.settings,
            tensors=TensorFacts(
                written=len(self.match.specs),
                zero=zero,
                tied=dict(self.match.tied),
                not_float=list(self.match.not_float),
            ),
            log_likelihood=likelihood / self.data.response_tokens,
            versions=self.versions,
            warnings=[str(note) for note in _notes(self.data, self.settings, zero)],
        )


def _check(source: Source, data: Path, out: Path, overwrite: bool) -> None:
    """What can be told before anything is loaded."""
    config, where = read_config(source.folder.path), Where(source=source.text)
    if not config:
        lacking, expected = f"{source.folder.path}: no config.json", "a model that transformers can load"
        raise SourceError(lacking, expected=expected, where=where)
    if "quantization_config" in config:
        expected = "float weights: gradients need them"
        raise SourceError(f"{source.text}: is quantised", expected=expected, where=where)
    if not source.folder.whole:
        raise SourceError(f"{source.text}: is one file", expected="the model's folder", where=where)
    read, place = Protected(), Destination(out)
    read.add_folder(source.folder.path, "the model")
    read.add_file(data, "the rollouts")
    read.refuse(out, place.out, place.folder, place.aside.folder)
    Staging(out, overwrite=overwrite)


def _check_tokenizer(source: Source) -> None:
    """Raise SourceError where there is none: transformers would make an empty one, of which no text has a token."""
    folder = source.folder.path
    if not has_tokenizer(folder):
        todo = "Copy the tokenizer's files of its base there."
        raise SourceError(f"{folder}: the folder has no tokenizer", todo=todo, where=Where(path=str(folder)))


def _torch() -> ModuleType:
    """The file that knows torch, imported only now."""
    try:
        from agentmerge.importance import fisher
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in {"torch", "transformers"}:
            raise
        raise MergeError(f"`agentmerge importance` needs {error.name}, which is not installed: {INSTALL}") from None
    return fisher


def _settings(options: Options, torch: ModuleType) -> Settings:
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


def _notes(data: DataFacts, settings: Settings, zero: list[str]) -> list[Note]:
    notes = []
    if data.examples < data.wanted:
        used = f"{data.path}: {data.examples} examples can be used, {data.wanted} were asked for: used all"
        notes.append(Note(used, where=Where(path=data.path)))
    if data.cut:
        notes.append(Note(f"{data.cut} prompts lost their beginning to fit --max-length {settings.max_length}"))
    if data.skipped:
        notes.append(Note(f"{data.skipped} examples skipped: the response leaves --max-length {settings.max_length}"))
    if zero:
        names = ", ".join(zero[:5])
        notes.append(Note(f"{len(zero)} tensors are zero everywhere, no gradient reached them: {names}"))
    return notes
