"""A LoRA adapter over its base: which tensors of its file change which of the base's, and how.

PEFT's names: base_model.model.X.lora_A.weight and lora_B.weight for the module X, lora_embedding_A and lora_embedding_B
for an embedding, lora_B.bias where lora_bias is set, and whole tensors for modules_to_save and trained biases. Whatever
else an adapter holds is refused by its name: nothing that was trained is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NoReturn

from agentmerge.errors import shortened
from agentmerge.files.documents import abbreviated
from agentmerge.sources.adapter_config import wrong
from agentmerge.sources.embeddings import embedding_in, usual_head
from agentmerge.sources.lowrank import Part, Product, Stock
from agentmerge.sources.prefixes import by_common_name, common_name
from agentmerge.sources.trainers import UNLORA
from agentmerge.tensors import MERGEABLE, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentmerge.sources.adapter_config import AdapterConfig
    from agentmerge.sources.source import Weights

Materialize = Literal["base_dtype", "exact"]
MATRIX = re.compile(r"^(?P<module>.+)\.lora_(?P<side>A|B)(?:\.default)?\.weight$")
BIAS = re.compile(r"^(?P<module>.+)\.lora_B(?:\.default)?\.bias$")
EMBEDDED = re.compile(r"^(?P<module>.+)\.lora_embedding_(?P<side>A|B)(?:\.default)?$")
WHOLE = re.compile(r"\.(?:base_layer|modules_to_save(?:\.default)?)(?=\.)")
"""What stands in the names of whole tensors."""
FOREIGN = {
    "lora_magnitude_vector": "DoRA",
    "lora_E": "AdaLoRA",
    "vera_": "VeRA",
    "hada_": "LoHa",
    "lokr_": "LoKr",
    "oft_": "OFT",
    "boft_": "BOFT",
    "ia3_": "IA3",
    "trainable_tokens": "single trained tokens",
    "token_adapter": "single trained tokens",
}
"""What the tensors of other adapters are called."""


@dataclass
class _Found:
    """The tensors of an adapter's file, by what they are."""

    matrices: dict[str, dict[str, str]] = field(default_factory=dict)
    """Module to side (A, B) to stored name."""
    embedded: dict[str, dict[str, str]] = field(default_factory=dict)
    biases: dict[str, str] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    """Name as the base may have it to stored name."""


class Adapter:
    """What an adapter makes of its base: `parts`, by the base's names."""

    def __init__(
        self, path: Path, stored: Weights, config: AdapterConfig, base: Weights, materialize: Materialize
    ) -> None:
        """Match every tensor with the base's.

        Args:
            path: of the adapter's weights, for messages.
            stored: its tensors.
            config: its settings.
            base: what they are added to.
            materialize: base_dtype: rounded to the dtype of the base's tensor; exact: float32 (float64 over float64).

        Raises:
            SourceError: a tensor is of no known kind, fits none of the base's, or lacks its counterpart.
        """
        self._path, self._stored, self._config, self._base = path, stored, config, base
        self._exact = materialize == "exact"
        self._names, self._embedding = by_common_name(base.specs), embedding_in(base.specs)
        self.parts: dict[str, Part] = {n: Part(spec, Stock(base, n)) for n, spec in base.specs.items()}
        self._doubtful: list[str] = []  # square matrices, whose direction only the config tells
        self._contrary = ""  # one whose shape says otherwise than the config
        found = self._sorted()
        for name, stored_name in found.whole.items():
            self._replace(name, stored_name)
        for module, sides in found.matrices.items():
            self._add(module, sides, embedded=False)
        for module, sides in found.embedded.items():
            self._add(module, sides, embedded=True)
        for module, bias in found.biases.items():
            self._add_bias(module, bias)
        self._check_directions()
        self._untie({*found.whole, *(f"{module}.weight" for module in (*found.matrices, *found.embedded))})
        own = {part.under.name: name for name, part in self.parts.items() if part.under.weights is stored}
        last = [own[name] for name in stored.specs if name in own]  # in the order of their file
        self.parts = {n: self.parts[n] for n in (*(n for n in self.parts if n not in last), *last)}

    def _sorted(self) -> _Found:
        found = _Found()
        for name in self._stored.specs:
            inner = name.removeprefix("base_model.model.")
            if matrix := MATRIX.match(inner):
                found.matrices.setdefault(matrix["module"], {})[matrix["side"]] = name
            elif embedded := EMBEDDED.match(inner):
                found.embedded.setdefault(embedded["module"], {})[embedded["side"]] = name
            elif bias := BIAS.match(inner):
                found.biases[bias["module"]] = name
            elif kind := next((kind for part, kind in FOREIGN.items() if part in inner), ""):
                self._wrong(name, f"is of {kind}", "a plain LoRA")
            elif "lora_" in inner or "original_module" in inner:
                self._wrong(name, "is of no kind that is known here", "lora_A, lora_B or a whole tensor")
            else:
                found.whole[WHOLE.sub("", inner)] = name
        return found

    def _replace(self, name: str, stored: str) -> None:
        """A tensor that was trained as a whole."""
        target, like = self._target(name, stored)
        spec = self._stored.specs[stored]
        if spec.dtype not in MERGEABLE and spec.dtype != like.dtype:
            self._wrong(stored, f"has dtype {spec.dtype}", like.dtype)
        if len(spec.shape) != len(like.shape) or spec.shape[1:] != like.shape[1:]:
            self._wrong(stored, f"has shape {list(spec.shape)}", f"{list(like.shape)}, as the base's {like.name}")
        dtype = spec.dtype if self._exact or like.dtype not in MERGEABLE else like.dtype
        self.parts[target] = Part(TensorSpec(target, dtype, spec.shape), Stock(self._stored, stored))

    def _add(self, module: str, sides: Mapping[str, str], *, embedded: bool) -> None:
        """The product of two matrices, added to a module's weight."""
        for side, other in (("A", "B"), ("B", "A")):
            if side not in sides:
                self._wrong(sides[other], f"has no counterpart of side {side}", "lora_A and lora_B of every module")
        a, b = (self._stock(sides[side]) for side in ("A", "B"))
        if len(a.spec.shape) != 2 or len(b.spec.shape) != 2:
            shapes = f"{list(a.spec.shape)} and {list(b.spec.shape)}"
            self._wrong(a.name, f"and its lora_B have shapes {shapes} (a convolution?)", "two matrices")
        rank = self._config.rank_of(module)
        if (a.spec.shape[0], b.spec.shape[1]) != (rank, rank):
            ranks = f"{a.spec.shape[0]} (A) and {b.spec.shape[1]} (B)"
            self._wrong(a.name, f"is of rank {ranks}", f"{rank}, as r or rank_pattern says")
        target, like = self._target(f"{module}.weight", a.name)
        under = self.parts.get(target, Part(like, Stock(self._base, like.name))).under
        turned = self._turned(under.spec.shape, a, b, embedded)
        left, right = (a, b) if turned else (b, a)
        self._put(target, like, under, Product(left, right, rank, turned, self._config.scale_of(module)))

    def _add_bias(self, module: str, name: str) -> None:
        target, like = self._target(f"{module}.bias", name)
        addend, under = self._stock(name), self.parts[target].under
        if addend.spec.shape != under.spec.shape:
            self._wrong(name, f"has shape {list(addend.spec.shape)}", f"{list(under.spec.shape)}")
        product = Product(addend, None, 1, False, self._config.scale_of(module))
        self._put(target, like, under, product)

    def _put(self, target: str, like: TensorSpec, under: Stock, product: Product) -> None:
        if under.spec.dtype not in MERGEABLE:
            todo = "Give the base in plain numbers, for example bfloat16, as it was before it was quantised."
            raise wrong(self._path, f"{target} of the base has dtype {under.spec.dtype}", "floats", todo, target)
        wide = "F64" if under.spec.dtype == "F64" else "F32"
        dtype = wide if self._exact else like.dtype
        self.parts[target] = Part(TensorSpec(target, dtype, under.spec.shape), under, product)

    def _stock(self, name: str) -> Stock:
        spec = self._stored.specs[name]
        if spec.dtype not in MERGEABLE:
            self._wrong(name, f"has dtype {spec.dtype}", "floats")
        return Stock(self._stored, name)

    def _target(self, name: str, stored: str) -> tuple[str, TensorSpec]:
        """The name that a tensor has in the agent, and the base's tensor that it belongs to.

        A head that the base ties has none of its own: it is the embedding, under the name of a head.
        """
        known = name if name in self._base.specs else self._names.get(common_name(name))
        if known is not None:
            return known, self._base.specs[known]
        if self._embedding is not None and common_name(name) == common_name(usual_head(self._embedding)):
            return usual_head(self._embedding), self._base.specs[self._embedding]
        todo = f"Is it an adapter of this base? {UNLORA}"
        raise wrong(self._path, f"tensor {abbreviated(stored)} changes {abbreviated(name)}, which the base lacks",
                    "the base's own modules", todo, stored)  # fmt: skip

    def _turned(self, shape: tuple[int, ...], a: Stock, b: Stock, embedded: bool) -> bool:
        """Whether the base has the product's matrix transposed."""
        outputs, inputs = b.spec.shape[0], a.spec.shape[1]
        straight, turned = shape == (outputs, inputs), shape == (inputs, outputs)
        if embedded and turned:
            return True
        if embedded or not (straight or turned):
            expected = [inputs, outputs] if embedded else [outputs, inputs]
            self._wrong(a.name, f"and its lora_B make a matrix {expected}", f"{list(shape)}, as the base's")
        if straight and turned:
            self._doubtful.append(a.name)
            return self._config.transposed
        if turned != self._config.transposed:
            self._contrary = self._contrary or a.name
        return turned

    def _check_directions(self) -> None:
        """Square matrices are as the config says, which must then be right about the others."""
        if self._contrary and self._doubtful:
            says = str(self._config.transposed).lower()
            self._wrong(
                self._doubtful[0],
                f"is of a square matrix, and fan_in_fan_out ({says}) is not true of {self._contrary}",
                "one direction",
            )

    def _untie(self, trained: set[str]) -> None:
        """Where an embedding was trained and the head that the base ties to it was not, that head is still the base's.

        PEFT trains them apart unless ensure_weight_tying is set.
        """
        names = {common_name(name) for name in trained}
        if self._embedding is None or common_name(self._embedding) not in names:
            return
        usual = usual_head(self._embedding)
        head = self._names.get(common_name(usual), usual)
        if common_name(head) in names:
            return
        if self._config.tied and head in self.parts:
            part = self.parts[self._embedding]
            self.parts[head] = replace(part, spec=replace(part.spec, name=head))
        elif not self._config.tied and head not in self.parts:
            spec = self._base.specs[self._embedding]
            self.parts[head] = Part(replace(spec, name=head), Stock(self._base, self._embedding))

    def _wrong(self, tensor: str, found: str, expected: str) -> NoReturn:
        raise wrong(self._path, f"tensor {abbreviated(tensor)} {found}", expected, UNLORA, tensor)

    @property
    def changed(self) -> list[str]:
        """The tensors that a product is added to."""
        return [name for name, part in self.parts.items() if part.product is not None]

    @property
    def replaced(self) -> list[str]:
        """The tensors that it has whole: those of modules_to_save, and trained biases."""
        own = self._stored
        return [name for name, part in self.parts.items() if part.product is None and part.under.weights is own]

    @property
    def besides(self) -> str:
        """What it does beside adding products, for the end of a sentence; "" for nothing."""
        names, many = self.replaced, len(self.replaced) > 1
        return f"; it also replaces {len(names)} tensor{'s' * many} ({shortened(names, 4)})" if names else ""

    def __str__(self) -> str:
        return f"a LoRA adapter on {len(self.changed)} tensors ({shortened(self.changed, 2)})"
