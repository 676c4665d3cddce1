"""Long-context memory: RULER-HotpotQA by number of documents, RULER-SQuAD by tokens, read as MemAgent reads them."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from agentmerge.eval.memory import scoring
from agentmerge.eval.memory.data import HOTPOTQA, SQUAD, Data, Length
from agentmerge.eval.memory.loop import DIRECT, direct, recurrent
from agentmerge.eval.suite import Cell, Column, DataFile, Item, SampledSettings, Suite
from agentmerge.eval.tokenizer import TextTokenizer
from agentmerge.eval.versions import version_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentmerge.errors import Problem
    from agentmerge.eval.data import Need
    from agentmerge.eval.request import JSON
    from agentmerge.eval.suite import Conversation

HOTPOTQA_LABELS = {50: "7K", 100: "14K", 200: "28K", 400: "56K", 800: "112K", 1600: "224K", 3200: "448K", 6400: "896K"}
"""About how many tokens so many documents have, as the paper's table 9 calls them."""


class MemorySettings(SampledSettings):
    """Every choice of the suite `memory`."""

    hotpotqa: tuple[int, ...] = tuple(HOTPOTQA_LABELS)
    """Documents of a sample, a length each."""
    squad: tuple[int, ...] = (8192, 16384, 32768, 65536, 131072)
    """Tokens of a sample, a length each."""
    samples: int = Field(default=128, ge=1)
    """Questions of a length, where samples are made here."""
    data_seed: int = 42
    """Which questions are asked, and which documents are put beside theirs."""
    reading: Literal["recurrent", "recurrent-boxed", "direct"] = "recurrent"
    """Section by section with a memory, or all at once."""
    section: int = Field(default=5000, ge=1)
    """Tokens of a section, which MemAgent calls a chunk."""
    context: int | None = Field(default=None, ge=2)
    """Tokens of the longest context (with `direct`: of the prompt) that is not cut; a longer one loses its middle."""
    max_tokens: int = Field(default=1024, ge=1)
    """New tokens of each memory and of the answer."""
    temperature: float = Field(default=0.7, ge=0)
    """Of every step."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Of every step."""
    tokenizer: str = ""
    """A folder with tokenizer.json that texts are cut by; "" takes the model's."""
    scoring: Literal["memagent", "strict"] = "memagent"
    """Which sub-EM stands in the tables; both are computed."""


class Memory(Suite):
    """RULER's question answering at growing lengths, after MemAgent."""

    name = "memory"
    domain = "memory"
    settings_type = MemorySettings
    settings: MemorySettings

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "memagent": {},
        "boxed": {"reading": "recurrent-boxed"},
        "direct": {"reading": "direct", "max_tokens": 10_000, "context": 120_000},
        "strict": {"scoring": "strict"},
    }

    def needs(self) -> Sequence[Need]:
        """MemAgent's own samples; each length can do without."""
        return [length.need for length in self._lengths]

    def requires(self) -> list[Problem]:
        """The tokenizer, and for every length its own file or the one that it is made from."""
        return [*TextTokenizer.problems(self._tokenizer_folder, self.name), *self._data.problems()]

    def items(self) -> list[Item]:
        """Every sample, length by length."""
        return list(self._data.items)

    def converse(self, item: Item) -> Conversation:
        """By MemAgent's loop, or in one message."""
        problem, sampling = item.data["problem"], self.settings.sampling()
        if self.settings.reading == "direct":
            prompt = DIRECT.format(context=self._data.context(item).strip(), problem=problem)
            return direct(self._shortened(prompt), sampling)
        return recurrent(problem, self._sections(item), sampling, self._ending)

    def score(self, item: Item, output: JSON) -> dict[str, Cell]:
        """Sub-EM in both ways, and exact match; MemAgent's own does not count an empty response."""
        response, answers, ending = output["response"], item.data["answers"], self._ending
        values = {
            "sub_em_memagent": scoring.sub_em_memagent(response, answers, ending),
            "sub_em_strict": scoring.sub_em_strict(response, answers, ending),
            "exact_match": scoring.exact_match(response, answers, ending),
        }
        return {name: Cell(value) for name, value in values.items() if value is not None}

    @property
    def columns(self) -> tuple[Column, ...]:
        """One for every length."""
        metric = f"sub_em_{self.settings.scoring}"
        return tuple(Column(length.group, metric, _label(length), (length.group,)) for length in self._lengths)

    def data_files(self) -> list[DataFile]:
        """What the samples came from, and the tokenizer."""
        return [*self._data.files(), self._tokenizer.data_file]

    def versions(self) -> dict[str, str]:
        """Of the library that cuts texts."""
        version = version_of("tokenizers")
        return {"tokenizers": version} if version else {}

    @property
    def _lengths(self) -> tuple[Length, ...]:
        hotpotqa = [Length(HOTPOTQA, size) for size in self.settings.hotpotqa]
        return (*hotpotqa, *(Length(SQUAD, size) for size in self.settings.squad))

    @property
    def _tokenizer_folder(self) -> str | None:
        return self.settings.tokenizer or self.given.tokenizer

    @cached_property
    def _tokenizer(self) -> TextTokenizer:
        return TextTokenizer(Path(self._tokenizer_folder or ""))

    @cached_property
    def _data(self) -> Data:
        settings = self.settings
        return Data(self.given.data_dir, self._lengths, settings.samples, settings.data_seed, self._tokenizer)

    @property
    def _ending(self) -> scoring.Ending:
        return "boxed" if self.settings.reading == "recurrent-boxed" else "sentence"

    def _shortened(self, text: str) -> str:
        most = self.settings.context
        return text if most is None else self._tokenizer.without_middle(text, most)

    def _sections(self, item: Item) -> Iterator[str]:
        """The pieces of the context. Between two of them only the places of its cuts are kept, or one that was cut."""
        kept = None if self.settings.context is None else self._text(item)
        for start, end in pairwise(self._tokenizer.cuts(kept or self._text(item), self.settings.section)):
            yield (kept or self._text(item))[start:end]

    def _text(self, item: Item) -> str:
        return self._shortened(self._data.context(item).strip())


def _label(length: Length) -> str:
    if length.source is HOTPOTQA:
        return f"HotpotQA {HOTPOTQA_LABELS.get(length.size, f'{length.size} documents')}"
    whole = length.size % 1024 == 0
    return f"SQuAD {f'{length.size // 1024}K' if whole else f'{length.size} tokens'}"
