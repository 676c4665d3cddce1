"""From a model and its data to the Gram matrices of its layers' inputs: resumable, whole or not there."""

from __future__ import annotations

import json
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from agentmerge.alike.grams import SHARED
from agentmerge.alike.measured import measured_on
from agentmerge.errors import DataError, Note, SourceError, shortened
from agentmerge.files.layout import INDEX, index_json, plan_layout
from agentmerge.files.writer import Writer
from agentmerge.importance.prepare import Options, digest, measured
from agentmerge.importance.record import GRAM_FORMULAS, GRAMS, GramFacts, GramRecord
from agentmerge.importance.run import SHARD_SIZE
from agentmerge.importance.store import Progress, SumStore
from agentmerge.methods.globs import globs_of, matches
from agentmerge.methods.layers import LINEAR, is_matrix
from agentmerge.tensors import MERGEABLE, TensorSpec, dtype_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from agentmerge.files.layout import Place
    from agentmerge.importance.inputs import Inputs, Layer
    from agentmerge.importance.prepare import Prepared
    from agentmerge.progress import Watch
    from agentmerge.tensors import Array

ROWS = 512
"""Rows of a matrix that are finished together."""


class GramOptions(Options):
    """What to measure and how."""

    command: ClassVar[str] = "grams"
    torch: ClassVar[str] = "importance.inputs"
    prompts: ClassVar[bool] = True
    linear: Annotated[str, BeforeValidator(lambda text: ",".join(globs_of(text)))] = ",".join(LINEAR)
    """Globs of the weights that are linear layers, with commas between them; as the methods' own `linear`."""
    stored: Annotated[Literal["float64", "float32"], BeforeValidator(dtype_name)] = "float64"
    """Of products, sums and files. float32 takes half the room, and is enough for regmean."""
    per: Literal["token", "example"] = "token"
    """What counts the same: every token, or every example, as the mean over its tokens, however long it is."""
    memory: float = Field(default=8.0, gt=0)
    """GB of unfinished matrices at a time: where they take more, the data are put through the model several times.
    Changes no byte of the result."""


def measure_grams(
    model: str | Path,
    data: Path,
    out: Path,
    options: GramOptions,
    *,
    overwrite: bool = False,
    again: bool = False,
    watch: Watch | None = None,
) -> GramRecord:
    """Write the Gram matrices of the inputs of a model's linear layers.

    G = (1/n) sum over n tokens of x x^T                  [in, in], x the input of the layer
    G = mean of that over the examples                    `per` example

    Of an agent's on its own prompts and responses; of the base's on prompts of what it can do, answered or not. Layers
    that are given the same input (q, k and v; gate and up) share one matrix. A killed run resumes when it is started
    again, on a CPU to the same bytes.

    Args:
        model: a folder with config, tokenizer and safetensors.
        data: JSON lines, see data.py; of a file that names skills the same number of each, as far as there are.
        out: appears when it is whole: safetensors by the names of the model's weights, and grams.json.
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

    record = GramRecord

    def __init__(self, work: Prepared, options: GramOptions) -> None:
        self.work, self.options = work, options
        settings, specs = work.settings, work.source.specs
        folder = work.source.folder.path
        self.inputs: Inputs = work.torch.Inputs(folder, settings.device, settings.dtype, options.stored, options.per)
        globs = globs_of(options.linear)
        wanted = {n for n, s in specs.items() if matches(n, globs) and s.dtype in MERGEABLE and is_matrix(s)}
        self.layers: tuple[Layer, ...] = self.inputs.layers(wanted.__contains__, work.corpus.examples[0])
        self.left_out = sorted(wanted.difference(*(layer.weights for layer in self.layers)))
        if not self.layers:
            found = f"{work.source.text}: no linear layer has a weight that fits {options.linear}"
            raise SourceError(found, todo="Say with --linear which they are.", where=work.source.where)
        shared = {name: layer.weights[0] for layer in self.layers for name in layer.weights[1:]}
        metadata = {SHARED: json.dumps(shared, separators=(",", ":")), **measured_on(work.source.weights)}
        self.layout = plan_layout([self._spec(layer) for layer in self.layers], SHARD_SIZE, metadata)

    @property
    def _count(self) -> int:
        """What the sums are divided by."""
        return self.work.corpus.tokens if self.options.per == "token" else len(self.work.corpus.examples)

    @staticmethod
    def identity(work: Prepared, options: GramOptions) -> dict[str, Any]:
        """What the result depends on."""
        own = {"linear": options.linear, "stored": options.stored, "per": options.per}
        return {"grams_of": work.model.files, **work.identity(options), **own}

    def run(self, out: Path, overwrite: bool, watch: Watch | None) -> GramRecord:
        """Resume or begin, and finish."""
        identity = self.identity(self.work, self.options)
        work = digest(identity)
        with Writer(out, self.layout, identity, overwrite=overwrite) as writer:
            done = {name for entry in writer.entries for name in entry["grams"]}
            left = list(self._rounds([layer for layer in self.layers if layer.weights[0] not in done]))
            if watch is not None:
                watch.begin("grams, tokens", len(left) * self.work.corpus.tokens)
            for layers in left:
                store = SumStore(writer.folder, [self._spec(layer) for layer in layers], work)
                try:
                    self._sum(layers, store, watch)
                except DataError as error:
                    store.drop()
                    writer.refuse(str(error))
                    raise
                for name, total in self.inputs.sums():
                    _write_mean(writer, self.layout.places[name], total, self._count)
                writer.commit([{"grams": [layer.weights[0] for layer in layers]}])
                store.drop()
            self.work.source.identity.restat()
            record, index = self._record(work), index_json(self.layout)
            writer.finish({GRAMS: record.dump(), **({INDEX: index} if index is not None else {})})
        return record

    def _rounds(self, layers: Sequence[Layer]) -> Iterator[list[Layer]]:
        """Layers whose sums fit the memory together, one at least."""
        held: list[Layer] = []
        for layer in layers:
            if held and sum(self._spec(one).nbytes for one in (*held, layer)) > self.options.memory * 1e9:
                yield held
                held = []
            held.append(layer)
        if held:
            yield held

    def _sum(self, layers: list[Layer], store: SumStore, watch: Watch | None) -> None:
        """Every example that no earlier run finished."""
        self.inputs.begin(layers)
        first, saved = self._resumed(store), monotonic()
        examples = self.work.corpus.examples
        if watch is not None:
            watch.advance(sum(example.tokens for example in examples[:first]))
        for i in range(first, len(examples)):
            self.inputs.observe(layers, examples[i])
            if monotonic() - saved >= 60 * self.options.every and i + 1 < len(examples):
                store.save(self.inputs.sums(), Progress(i + 1))
                saved = monotonic()
            if watch is not None:
                watch.advance(examples[i].tokens)

    def _resumed(self, store: SumStore) -> int:
        """How many examples the sums of an earlier run hold, which are taken over."""
        saved = store.load()
        if saved is None:
            return 0
        done, sums = saved
        self.inputs.restore(sums)
        return done.examples

    def _spec(self, layer: Layer) -> TensorSpec:
        dtype = {"float64": "F64", "float32": "F32"}[self.options.stored]
        return TensorSpec(layer.weights[0], dtype, (layer.size, layer.size))

    def _record(self, identity: str) -> GramRecord:
        facts = [
            GramFacts(name=layer.weights[0], inputs=layer.size, shared=list(layer.weights[1:])) for layer in self.layers
        ]
        return GramRecord(
            identity=identity,
            formula=GRAM_FORMULAS[self.options.per],
            model=self.work.model,
            data=self.work.data,
            settings=self.work.settings,
            stored=self.options.stored,
            per=self.options.per,
            tokens=self.work.corpus.tokens,
            grams=facts,
            left_out=self.left_out,
            versions=self.work.versions,
            warnings=[str(note) for note in self._notes()],
        )

    def _notes(self) -> list[Note]:
        tokens, notes, examples = self.work.corpus.tokens, self.work.notes, self.work.corpus.examples
        bare = sum(not example.response for example in examples)
        if 0 < bare < len(examples):
            found = f"{bare:,} of {len(examples):,} examples have no response: of these the prompt alone was measured"
            notes.append(Note(found, "Give an agent's answers with its prompts."))
        singular = [layer.weights[0] for layer in self.layers if tokens < layer.size]
        if singular:
            found = (
                f"{tokens:,} tokens are fewer than the inputs of {len(singular)} matrices ({shortened(singular, 2)})"
            )
            notes.append(Note(f"{found}: they are singular, and esm may not be defined there", "Give more examples."))
        if self.left_out:
            found = f"{len(self.left_out)} weights have no matrix ({shortened(self.left_out, 2)})"
            notes.append(Note(f"{found}: no layer of their own takes their inputs", "Leave them out of `linear`."))
        return notes


def _write_mean(writer: Writer, place: Place, total: Array, count: int) -> None:
    """Write (total + total^T) / 2 / count: products of rounded numbers are not quite symmetric."""
    for low in range(0, len(total), ROWS):
        rows = total[low : low + ROWS] + total[:, low : low + ROWS].T
        writer.write(place, low * len(total), np.ascontiguousarray(rows / (2 * count), total.dtype).reshape(-1))
