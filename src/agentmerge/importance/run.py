"""From a model and its data to an importance checkpoint: resumable, whole or not there. Knows no torch by itself."""

from __future__ import annotations

import json
from hashlib import sha256
from itertools import chain, islice
from time import monotonic
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError

from agentmerge._version import __version__
from agentmerge.errors import DataError, MergeError, OutputError, RecipeError, SourceError, complaints, did_you_mean
from agentmerge.files.layout import INDEX, Layout, index_json, plan_layout
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
from agentmerge.importance.store import Done, SumStore, write_means
from agentmerge.importance.tokens import encode
from agentmerge.sources.beside import read_config
from agentmerge.sources.opening import opened

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
INSTALL = "pip install 'agentmerge[importance]'"


class Wanted(Frozen):
    """What to measure and how."""

    examples: int = Field(default=256, ge=1)
    """The first so many of the file that fit."""
    max_length: int = Field(default=2048, ge=2)
    """Tokens of prompt and response together."""
    chat: bool = False
    """Treat a plain prompt as one user message."""
    device: str = "auto"
    dtype: str = "auto"
    """Of weights and gradients: bfloat16 on cuda and float32 on cpu where it is "auto"."""
    every: float = Field(default=10.0, ge=0)
    """Minutes of work between two saves, to resume from; changes no byte of the result."""

    @classmethod
    def of(cls, **options: Any) -> Wanted:
        """Check options.

        Raises:
            RecipeError: one is out of its range.
        """
        try:
            return cls(**options)
        except ValidationError as error:
            raise RecipeError(complaints(error, "importance: ", {})) from None


def measure(
    model: str | Path, data: Path, out: Path, wanted: Wanted, *, overwrite: bool = False, watch: Watch | None = None
) -> ImportanceRecord:
    """Write the diagonal empirical Fisher of an agent on its own prompts and responses.

    F = (1/n) sum over n examples of (d/d theta of the sum over response tokens of log p(token | prefix))^2

    A killed run resumes when it is started again, on a CPU to the same bytes.

    Args:
        model: a folder with config, tokenizer and safetensors.
        data: JSON lines, see data.py.
        out: appears when it is whole: float32 safetensors in the names and shapes of the model, and importance.json.
        wanted: settings.
        overwrite: replace what is at `out` at the end, and start over where unfinished work is of another input.
        watch: told of the progress, in tokens.

    Raises:
        MergeError: whatever is wrong with the inputs, the settings or the disk.
    """
    with opened(None, str(model)) as source:
        _check(source, out, overwrite)
        examples = read_examples(data)
        first = list(islice(examples, wanted.examples))  # before torch is imported: a bad line is told at once
        torch = _torch()
        settings = _settings(wanted, torch)
        corpus = encode(
            chain(first, examples),
            torch.load_tokenizer(source.folder.path),
            data,
            wanted=wanted.examples,
            max_length=wanted.max_length,
            chat=wanted.chat,
        )
        job = _Job(source, data, wanted, settings, corpus, torch)
        source.identity.restat()
        return job.run(out, overwrite, watch)


class _Job:
    """One measurement with everything it depends on."""

    def __init__(
        self,
        source: Source,
        data: Path,
        wanted: Wanted,
        settings: Settings,
        corpus: Corpus,
        torch: ModuleType,
    ) -> None:
        self.source, self.wanted, self.settings, self.corpus = source, wanted, settings, corpus
        self.versions = {"agentmerge": __version__, **torch.VERSIONS}
        self.model = ModelFacts(source=source.text, files=source.identity.as_json()["files"])
        self.data = _data_facts(data, wanted, corpus)
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
            "examples": self.wanted.examples,
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
            done = Done(i + 1, done.log_likelihood + self.fisher.observe(examples[i]))
            if monotonic() - saved >= 60 * self.wanted.every and done.examples < len(examples):
                store.save(self.fisher.sums(), done)
                saved = monotonic()
            if watch is not None:
                watch.advance(examples[i].tokens)
        return done.log_likelihood

    def _resumed(self, store: SumStore) -> Done:
        saved = store.load()
        if saved is None:
            return Done()
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
            warnings=_warnings(self.data, self.settings, zero),
        )


def _check(source: Source, out: Path, overwrite: bool) -> None:
    """What can be told before anything is loaded."""
    config = read_config(source.folder.path)
    if not config:
        raise SourceError(f"{source.folder.path}: no config.json, expected a model that transformers can load.")
    if "quantization_config" in config:
        raise SourceError(f"{source.text}: is quantised, expected float weights: gradients need them.")
    if not source.folder.whole:
        raise SourceError(f"{source.text}: is one file, expected the model's folder.")
    target, folder = out.resolve(), source.folder.path.resolve()
    if target == folder or folder in target.parents or target in folder.parents:
        raise OutputError(f"{out}: lies in, or holds, the model ({folder}). Choose another --out.")
    Staging(out, overwrite=overwrite)


def _torch() -> ModuleType:
    """The file that knows torch, imported only now."""
    try:
        from agentmerge.importance import fisher
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in {"torch", "transformers"}:
            raise
        raise MergeError(f"`agentmerge importance` needs {error.name}, which is not installed: {INSTALL}") from None
    return fisher


def _settings(wanted: Wanted, torch: ModuleType) -> Settings:
    for option, value, known in (("device", wanted.device, torch.DEVICES), ("dtype", wanted.dtype, torch.DTYPES)):
        if value not in {"auto", *known}:
            raise RecipeError(f"--{option}: '{value}' is unknown.{did_you_mean(value, {'auto', *known})}")
    device = torch.choose_device(wanted.device)
    dtype = {"cpu": "float32", "cuda": "bfloat16"}[device] if wanted.dtype == "auto" else wanted.dtype
    return Settings(max_length=wanted.max_length, chat=wanted.chat, device=device, dtype=dtype)


def _data_facts(path: Path, wanted: Wanted, corpus: Corpus) -> DataFacts:
    return DataFacts(
        path=str(path),
        sha256=sha256_of(path),
        wanted=wanted.examples,
        examples=len(corpus.examples),
        prompt_tokens=sum(len(example.prompt) for example in corpus.examples),
        response_tokens=sum(len(example.response) for example in corpus.examples),
        cut=sum(example.cut for example in corpus.examples),
        skipped=corpus.skipped,
    )


def _warnings(data: DataFacts, settings: Settings, zero: list[str]) -> list[str]:
    warnings = []
    if data.examples < data.wanted:
        warnings.append(f"{data.path}: {data.examples} examples can be used, {data.wanted} were asked for: used all")
    if data.cut:
        warnings.append(f"{data.cut} prompts lost their beginning to fit --max-length {settings.max_length}")
    if data.skipped:
        warnings.append(f"{data.skipped} examples skipped: the response leaves --max-length {settings.max_length}")
    if zero:
        warnings.append(f"{len(zero)} tensors are zero everywhere, no gradient reached them: {', '.join(zero[:5])}")
    return warnings
