"""What a packed delta holds: its entries, its manifest, and what both agree in. docs/deltas.md is the long form."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from agentmerge.errors import SourceError, Where
from agentmerge.files.documents import abbreviated, strict_json
from agentmerge.sources.delta import INDICES, VALUES
from agentmerge.tensors import DTYPES, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

Form = Literal["same", "indices", "bitmap", "whole"]
FORMS: tuple[Form, ...] = ("same", "indices", "bitmap", "whole")

KEY, VERSION = "agentmerge_delta", 1
"""In a header's metadata."""
BITMAP = ".bitmap"
RANKS, FILES, MANIFEST = "agentmerge.ranks", "agentmerge.files", "agentmerge.manifest"
CHUNK = 1 << 16
"""Elements between two ranks, which say how many values lie before them."""
MOST_INDEXED = 1 << 31
"""Elements of a tensor whose places an int32 holds."""
LARGEST = 1 << 28
"""Bytes of a manifest."""
WHOLE_TODO = "It is damaged: pack it again, or fetch it again."


@dataclass(frozen=True, slots=True)
class Packed:
    """One tensor of the agent."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    form: Form
    changed: int
    """Elements whose values are kept."""
    base: str | None
    """The base's name of the same tensor; None where the base has none like it."""
    base_print: str | None
    """Fingerprint of the base's numbers, 16 hexadecimal digits."""
    print: str
    """That of the agent's."""

    @property
    def spec(self) -> TensorSpec:
        """As the agent has it."""
        return TensorSpec(self.name, self.dtype, self.shape)

    @property
    def ranks(self) -> int:
        """How many numbers of RANKS are about it."""
        return -(-self.spec.elements // CHUNK) + 1 if self.form in ("indices", "bitmap") else 0

    @property
    def entries(self) -> tuple[TensorSpec, ...]:
        """The entries of the file that hold it."""
        return entries_of(self.spec, self.form, self.changed)


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file beside the agent's weights."""

    name: str
    size: int
    sha256: str
    kept: bool
    """False: it is the base's file of that name."""


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A weight file of the agent, of which the header is kept as it is."""

    name: str
    header: int
    """Bytes of it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What no entry tells."""

    base: str
    """The name of the base, for people."""
    sample: str
    """Hash of a sample of the base's numbers."""
    tensors: tuple[Packed, ...]
    lacking: tuple[str, ...]
    """Tensors of the base that the agent does not have."""
    weights: tuple[WeightFile, ...]
    """In the order of their headers in FILES; none where the agent was no plain safetensors."""
    files: tuple[KeptFile, ...]
    """In the order of their bytes in FILES."""

    @property
    def kept_bytes(self) -> int:
        """Of FILES."""
        return sum(file.header for file in self.weights) + sum(file.size for file in self.files if file.kept)

    def encode(self) -> bytes:
        """As the file has it."""
        content: dict[str, Any] = {"version": VERSION, "chunk": CHUNK, **asdict(self)}
        content["base"] = {"name": self.base, "sample": content.pop("sample")}
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def decode(cls, raw: bytes, path: Path) -> Manifest:
        """Read it back.

        Raises:
            SourceError: it says something that `encode` does not.
        """
        where = Where(tensor=MANIFEST, path=str(path))
        content = strict_json(raw, f"{path}: its manifest", where)
        if content.get("version") != VERSION or content.get("chunk") != CHUNK:
            found = f"version {abbreviated(content.get('version'))}, chunk {abbreviated(content.get('chunk'))}"
            todo = "Update agentmerge, or pack it again."
            raise SourceError(f"{path}: {found}", expected=f"version {VERSION}, {CHUNK}", todo=todo, where=where)
        try:
            return _manifest(content)
        except (KeyError, TypeError, ValueError) as problem:
            text = f"{path}: its manifest is not as expected: {type(problem).__name__}: {str(problem)[:200]}"
            raise SourceError(text, todo=WHOLE_TODO, where=where) from None


def entries_of(spec: TensorSpec, form: Form, changed: int) -> tuple[TensorSpec, ...]:
    """The entries of a tensor in a form, in the order of their data.

    Args:
        spec: of the tensor.
        form: that it has.
        changed: its values.
    """
    values = TensorSpec(spec.name + VALUES, spec.dtype, (changed,))
    if form == "indices":
        return TensorSpec(spec.name + INDICES, "I32", (changed,)), values
    if form == "bitmap":
        return TensorSpec(spec.name + BITMAP, "U8", (-(-spec.elements // 8),)), values
    return (spec,) if form == "whole" else ()


def smallest(spec: TensorSpec, changed: int, *, sparse: bool = True) -> Form:
    """The form that takes the fewest bytes; of equal ones the first of `whole`, `bitmap`, `indices`.

    Args:
        spec: of the tensor, of which the base has one like it.
        changed: elements that differ.
        sparse: whether entries may be made beside the tensor's own name.
    """
    if changed == 0:
        return "same"
    if not sparse:
        return "whole"
    forms: list[Form] = ["whole", "bitmap"]
    if spec.elements < MOST_INDEXED:
        forms.append("indices")
    return min(forms, key=lambda form: sum(entry.nbytes for entry in entries_of(spec, form, changed)))


def may_be_sparse(name: str, names: Mapping[str, object]) -> bool:
    """Whether the entries of a tensor would be named as no other tensor of the agent is."""
    return not any(name + end in names for end in (INDICES, VALUES, BITMAP))


def _manifest(content: Mapping[str, Any]) -> Manifest:
    tensors = tuple(_packed(entry) for entry in content["tensors"])
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise ValueError("two tensors of one name")
    return Manifest(
        base=_text(content["base"]["name"]),
        sample=_text(content["base"]["sample"]),
        tensors=tensors,
        lacking=tuple(map(_text, content["lacking"])),
        weights=tuple(WeightFile(_path(f["name"]), _count(f["header"])) for f in content["weights"]),
        files=tuple(
            KeptFile(_path(f["name"]), _count(f["size"]), _text(f["sha256"]), _truth(f["kept"]))
            for f in content["files"]
        ),
    )


def _packed(entry: Mapping[str, Any]) -> Packed:
    shape = tuple(map(_count, entry["shape"]))
    if len(shape) > 64 or entry["dtype"] not in DTYPES or entry["form"] not in FORMS:
        raise ValueError(f"a tensor of {abbreviated(entry)}")
    base = None if entry["base"] is None else _text(entry["base"])
    base_print = None if entry["base_print"] is None else _print(entry["base_print"])
    found = Packed(
        _text(entry["name"]), entry["dtype"], shape, entry["form"], _count(entry["changed"]), base, base_print,
        _print(entry["print"]),
    )  # fmt: skip
    if found.spec.elements >= 2**63 or found.changed > found.spec.elements:
        raise ValueError(f"{found.changed} changes of {found.spec.elements} elements in {abbreviated(found.name)}")
    if (base is None) != (base_print is None) or (base is None and found.form != "whole"):
        raise ValueError(f"{abbreviated(found.name)} has no base")
    if (found.form == "same") != (found.changed == 0 and base is not None):
        raise ValueError(f"{abbreviated(found.name)} is {found.form} with {found.changed} changes")
    if found.form == "indices" and found.spec.elements >= MOST_INDEXED:
        raise ValueError(f"{abbreviated(found.name)} has {found.spec.elements} elements and indices")
    return found


def _count(found: object) -> int:
    if type(found) is int and 0 <= found < 2**63:
        return found
    raise ValueError(f"{abbreviated(found)} where a whole number is expected")


def _text(found: object) -> str:
    if isinstance(found, str):
        return found
    raise ValueError(f"{abbreviated(found)} where a text is expected")


def _print(found: object) -> str:
    text = _text(found)
    if len(text) != 16 or set(text) - set("0123456789abcdef"):
        raise ValueError(f"{abbreviated(text)} where a fingerprint is expected")
    return text


def _truth(found: object) -> bool:
    if isinstance(found, bool):
        return found
    raise ValueError(f"{abbreviated(found)} where true or false is expected")


def _path(found: object) -> str:
    """A path inside a folder, whatever a hostile file says."""
    text = _text(found)
    parts = text.split("/")
    if not text or "\0" in text or "\\" in text or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"the path {abbreviated(text)}")
    return text


def check_distinct(names: Iterable[str]) -> None:
    """Raise ValueError where two files would lie in one place."""
    seen: set[str] = set()
    for name in names:
        if name in seen or any(name.startswith(f"{other}/") or other.startswith(f"{name}/") for other in seen):
            raise ValueError(f"two files at {abbreviated(name)}")
        seen.add(name)
