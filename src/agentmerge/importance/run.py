"""From a model and its data to an importance checkpoint: resumable, whole or not there."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from agentmerge.alike.measured import measured_on
from agentmerge.errors import DataError, Note
from agentmerge.files.layout import INDEX, Layout, index_json, plan_layout
from agentmerge.files.writer import Writer
from agentmerge.importance.names import match
from agentmerge.importance.prepare import digest, measured
from agentmerge.importance.record import RECORD, ImportanceRecord, TensorFacts
from agentmerge.importance.store import Progress, SumStore, write_means

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.importance.fisher import Fisher
    from agentmerge.importance.names import Match
    from agentmerge.importance.prepare import Options, Prepared
    from agentmerge.progress import Watch

SHARD_SIZE = 5_000_000_000
"""Most bytes of data in a file of the output."""


def measure(
    model: str | Path,
    data: Path,
    out: Path,
    options: Options,
    *,
    overwrite: bool = False,
    again: bool = False,
    watch: Watch | None = None,
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
        again: where `out` is what an earlier call with this model, data and options finished, give its record.
        watch: told of the progress, in tokens.

    Raises:
        MergeError: whatever is wrong with the inputs, the settings or the disk.
    """
    return measured(_Job, model, data, out, options, overwrite=overwrite, again=again, watch=watch)


class _Job:
    """One measurement with everything it depends on."""

    record = ImportanceRecord

    def __init__(self, work: Prepared, options: Options) -> None:
        self.work, self.options, self.source = work, options, work.source
        self.fisher: Fisher = work.torch.Fisher(work.source.folder.path, work.settings.device, work.settings.dtype)
        self.match: Match = match(work.source.specs, self.fisher.names(), work.source.text)
        self.layout: Layout = plan_layout(self.match.specs, SHARD_SIZE, measured_on(work.source.weights))

    @staticmethod
    def identity(work: Prepared, options: Options) -> dict[str, Any]:
        """What the result depends on."""
        return {"importance_of": work.model.files, **work.identity(options)}

    def run(self, out: Path, overwrite: bool, watch: Watch | None) -> ImportanceRecord:
        """Resume or begin, and finish."""
        identity = self.identity(self.work, self.options)
        work = digest(identity)
        with Writer(out, self.layout, identity, overwrite=overwrite) as writer:
            store = SumStore(writer.folder, self.fisher.specs, work)
            try:
                likelihood = self._sum(store, watch)
            except DataError as error:
                store.drop()
                writer.refuse(str(error))
                raise
            self.source.identity.restat()
            zero = write_means(writer, self.layout, self.fisher.stored_sums(), len(self.work.corpus.examples))
            record = self._record(work, zero, likelihood)
            index = index_json(self.layout)
            writer.finish({RECORD: record.dump(), **({INDEX: index} if index is not None else {})})
        return record

    def _sum(self, store: SumStore, watch: Watch | None) -> float:
        """Every example that no earlier run finished; the log-likelihood of all."""
        done, saved = self._resumed(store), monotonic()
        examples = self.work.corpus.examples
        if watch is not None:
            watch.begin("importance, tokens", self.work.corpus.tokens)
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

    def _record(self, identity: str, zero: list[str], likelihood: float) -> ImportanceRecord:
        return ImportanceRecord(
            identity=identity,
            model=self.work.model,
            data=self.work.data,
            settings=self.work.settings,
            tensors=TensorFacts(
                written=len(self.match.specs),
                zero=zero,
                tied=dict(self.match.tied),
                not_float=list(self.match.not_float),
            ),
            log_likelihood=likelihood / self.work.data.response_tokens,
            versions=self.work.versions,
            warnings=[str(note) for note in _notes(self.work, zero)],
        )


def _notes(work: Prepared, zero: list[str]) -> list[Note]:
    notes = work.notes
    if zero:
        names = ", ".join(zero[:5])
        notes.append(Note(f"{len(zero)} tensors are zero everywhere, no gradient reached them: {names}"))
    return notes
