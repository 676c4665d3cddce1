"""importance.json: what was measured on what, as typed JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.frozen import Frozen, Record

if TYPE_CHECKING:
    from pathlib import Path

RECORD = "importance.json"
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


class ImportanceRecord(Record):
    """One importance checkpoint."""

    formula: str = FORMULA
    model: ModelFacts
    data: DataFacts
    settings: Settings
    tensors: TensorFacts
    log_likelihood: float
    """Mean over the response tokens; far below 0 means data that are not this agent's own, or another template."""
    versions: dict[str, str]
    warnings: list[str]

    def dump(self) -> bytes:
        """The file's content."""
        return (self.model_dump_json(indent=2) + "\n").encode()

    @classmethod
    def load(cls, folder: Path) -> ImportanceRecord:
        """Read OUT/importance.json back."""
        return cls.model_validate_json((folder / RECORD).read_bytes())
