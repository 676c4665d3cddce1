"""importance.json and grams.json: what was measured on what, as typed JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from agentmerge.frozen import Frozen, Record

if TYPE_CHECKING:
    from pathlib import Path

RECORD, GRAMS = "importance.json", "grams.json"
GRAM_FORMULAS = {
    "token": "G = (1/n) sum over n tokens of x x^T, x the input of the layer, prompt and response alike",
    "example": "G = mean over examples of (1/n) sum over their n tokens of x x^T, x the input of the layer",
}
"""By what counts the same."""
FORMULA = "F = (1/n) sum over n examples of (d/d theta of the sum over response tokens of log p(token | prefix))^2"


class ModelFacts(Frozen):
    """Whose importance it is."""

    source: str
    files: list[dict[str, Any]]
    """Name, size, mtime_ns and header hash of every weight file."""


class DataFacts(Frozen):
    """What it was measured on."""

    path: str
    sha256: str
    wanted: int
    """Examples asked for."""
    examples: int
    """Examples used: n of the formula."""
    prompt_tokens: int
    response_tokens: int
    cut: int
    """Examples whose prompt lost tokens on the left, to fit max_length."""
    skipped: int
    """Examples whose response alone was too long."""


class Settings(Frozen):
    """How it was measured."""

    max_length: int
    chat: bool
    device: str
    dtype: str
    """Of the model's weights and gradients; squares are summed in float32."""


class TensorFacts(Frozen):
    """What became of the model's stored tensors."""

    written: int
    zero: list[str]
    """Zero everywhere: no gradient reached them (a buffer, an expert that no token took, a part not loaded)."""
    tied: dict[str, str]
    """Left out, to the stored tensor whose array holds their gradient too."""
    not_float: list[str]
    """Left out: no method merges their dtype."""


class GramFacts(Frozen):
    """One Gram matrix."""

    name: str
    """The layer's weight, in the words of the model's files."""
    inputs: int
    """It is [inputs, inputs]."""
    shared: list[str]
    """Other weights that have the same inputs, and so this matrix."""


class Measured(Record):
    """What a measurement writes last, beside its numbers."""

    FILE: ClassVar[str]
    """Its name."""

    identity: str = ""
    """SHA-256 of all that the result depends on; none of a record of an earlier version."""
    model: ModelFacts
    data: DataFacts
    settings: Settings
    versions: dict[str, str]
    warnings: list[str]

    def dump(self) -> bytes:
        """The file's content."""
        return (self.model_dump_json(indent=2) + "\n").encode()

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read it back from its folder."""
        return cls.model_validate_json((folder / cls.FILE).read_bytes())


class GramRecord(Measured):
    """The Gram matrices of one model: grams.json."""

    FILE: ClassVar[str] = GRAMS

    formula: str = GRAM_FORMULAS["token"]
    stored: str
    """float64 or float32: of the products, of their sums and of the files."""
    per: str = "token"
    """What counts the same: token, or example."""
    tokens: int
    """Of all examples; n of the formula where every token counts the same."""
    grams: list[GramFacts]
    left_out: list[str]
    """Weights that the globs of linear layers fit, but that no layer of the model takes its inputs by."""


class ImportanceRecord(Measured):
    """One importance checkpoint: importance.json."""

    FILE: ClassVar[str] = RECORD

    formula: str = FORMULA
    tensors: TensorFacts
    log_likelihood: float
    """Mean over the response tokens; far below 0 means data that are not this agent's own, or another template."""
