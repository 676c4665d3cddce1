"""Tool use: the 13 single-turn categories of the Berkeley Function Calling Leaderboard, scored by its AST checker."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from agentmerge.errors import Problem, Where, did_you_mean
from agentmerge.eval.data import sha256_of
from agentmerge.eval.request import Request
from agentmerge.eval.suite import Cell, Column, DataFile, Item, SampledSettings, Suite
from agentmerge.eval.suites import bfcl_harness
from agentmerge.eval.suites.bfcl_styles import STYLES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentmerge.eval.request import JSON
    from agentmerge.eval.suite import Conversation

SIMPLE = ("simple_python", "simple_java", "simple_javascript")
NON_LIVE_AST = (*SIMPLE, "multiple", "parallel", "parallel_multiple")
LIVE_AST = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
RELEVANCE = ("irrelevance", "live_irrelevance", "live_relevance")
"""Only whether anything is called counts."""
CATEGORIES = (*NON_LIVE_AST, "irrelevance", *LIVE_AST, "live_irrelevance", "live_relevance")
COUNTS = {
    "simple_python": 400, "simple_java": 100, "simple_javascript": 50, "multiple": 200, "parallel": 200,
    "parallel_multiple": 200, "irrelevance": 240, "live_simple": 258, "live_multiple": 1053, "live_parallel": 16,
    "live_parallel_multiple": 24, "live_irrelevance": 884, "live_relevance": 16,
}  # fmt: skip
"""Items of the data that the paper's table 8 was made with."""


class BfclSettings(SampledSettings):
    """Of the suite `bfcl`."""

    max_tokens: int = Field(default=4096, ge=1)
    """New tokens; bfcl-eval takes at most so many."""
    temperature: float = Field(default=0.001, ge=0)
    """bfcl-eval's own; the paper says nothing of it."""
    style: Literal["bfcl", "toolrl"] = "bfcl"
    """How functions are shown and calls are read; the paper does not say which its merged models got."""
    categories: tuple[str, ...] = CATEGORIES
    """Which of the 13."""


class Bfcl(Suite):
    """Questions with functions that may answer them; the right answer is a call, several, or none."""

    name = "bfcl"
    domain = "tool"
    settings_type = BfclSettings
    settings: BfclSettings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "bfcl": {}, "toolrl": {"style": "toolrl"}}

    def requires(self) -> list[Problem]:
        """bfcl-eval and what it needs, and categories that there are."""
        unknown = [name for name in self.settings.categories if name not in CATEGORIES]
        where = Where(path="bfcl.categories")
        return [
            *(
                Problem(f"bfcl.categories: no '{n}'", todo=did_you_mean(n, CATEGORIES).strip(), where=where)
                for n in unknown
            ),
            *bfcl_harness.missing(),
        ]

    def items(self) -> list[Item]:
        """Category by category, in the order of the files; each holds the question with and without hints."""
        found = []
        for category in self.settings.categories:
            shown = bfcl_harness.harness().entries(category, hints=True)
            checked = {one["id"]: one for one in bfcl_harness.harness().entries(category, hints=False)}
            answers = {} if category in RELEVANCE else bfcl_harness.harness().answers(category)
            found += [
                Item(
                    one["id"], category, {"shown": one, "checked": checked[one["id"]], "answer": answers.get(one["id"])}
                )
                for one in shown
            ]
        return found

    def converse(self, item: Item) -> Conversation:
        """One answer; the output is its text."""
        chat = STYLES[self.settings.style].messages(bfcl_harness.harness(), item.data["shown"])
        (response,) = yield [Request(chat, None, self.settings.sampling())]
        return {"text": response.text}

    def score(self, item: Item, output: JSON) -> dict[str, Cell]:
        """1 for the right calls; in bfcl-eval's order decode, look at the form, check."""
        return {"right": Cell(float(self._right(item, output["text"])))}

    def score_all(self, items: Sequence[Item], outputs: Sequence[JSON]) -> list[dict[str, Cell]]:
        """And the weights that make bfcl-eval's own means: see `columns`."""
        cells = super().score_all(items, outputs)
        counts = Counter(item.group for item in items)
        for item, own in zip(items, cells, strict=True):
            right = own["right"].value
            if item.group in LIVE_AST:
                own["live"] = Cell(right)
            if item.group in NON_LIVE_AST:
                own["non_live"] = Cell(right, _non_live_weight(item.group, counts))
        return cells

    @property
    def columns(self) -> tuple[Column, ...]:
        """bfcl-eval's two means over AST categories, then every category.

        live = right / items over the four live ones; non_live = the plain mean of simple, multiple, parallel and
        parallel_multiple, in which simple is that of its three languages. A mean is there if all of its categories are.
        Beside one the relevance categories, which are in neither, are shown and do not count in means over columns.
        """
        chosen = self.settings.categories
        means = [("live", "BFCL live", LIVE_AST), ("non_live", "BFCL non-live", NON_LIVE_AST)]
        whole = [Column(name, name, label, parts) for name, label, parts in means if set(parts) <= set(chosen)]
        return (
            *whole,
            *(
                Column(one, "right", one.replace("_", " "), (one,), counts=not (whole and one in RELEVANCE))
                for one in chosen
            ),
        )

    def data_files(self) -> list[DataFile]:
        """Those of the wheel."""
        origin, counts = f"bfcl-eval {bfcl_harness.version()}", Counter(item.group for item in self.items())
        files = [(category, bfcl_harness.data_file(category)) for category in self.settings.categories]
        return [DataFile(path.name, origin, sha256_of(path), counts[category]) for category, path in files]

    def versions(self) -> dict[str, str]:
        """Of bfcl-eval."""
        return {name: version for name, version in [("bfcl-eval", bfcl_harness.version())] if version}

    def _right(self, item: Item, text: str) -> bool:
        tool, category = bfcl_harness.harness(), item.group
        try:
            decoded = STYLES[self.settings.style].decode(tool, text, category)
            if category in RELEVANCE:
                called = not tool.is_empty(decoded)
                return called != ("irrelevance" in category)
            return tool.is_calls(decoded) and tool.check(item.data["checked"], decoded, item.data["answer"], category)
        except Exception:  # of parsers and a checker that a model's words can break in many ways
            return "irrelevance" in category


def _non_live_weight(category: str, counts: Mapping[str, int]) -> float:
    """Of an item in the plain mean of the four kinds."""
    languages = sum(one in counts for one in SIMPLE) if category in SIMPLE else 1
    return 1 / (languages * counts[category])
