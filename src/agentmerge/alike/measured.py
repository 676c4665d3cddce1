"""Whether what lies beside weights was measured on these: samples of the weights, kept with it and compared."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from agentmerge.alike.names import HEAD
from agentmerge.errors import BASE, ONTO, Note, RecipeError, SourceError
from agentmerge.files.documents import abbreviated, json_or_nothing
from agentmerge.sources.sampled import Sample, compared, sampled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agentmerge.sources.sampled import Compared
    from agentmerge.sources.source import Source, Weights

MEASURED_ON = "measured_on"
"""In the files' metadata: JSON, the weights' tensors to [dtype, shape, digest], see sources/sampled.py."""
CALLED = {BASE: "the base", ONTO: "what the merge is put onto"}


def measured_on(weights: Weights) -> dict[str, str]:
    """What the files of a measurement say of the weights that it was made on.

    Of a head nothing, which is stored or not where it is tied.

    Raises:
        SourceError: the weights can't be read.
    """
    return {MEASURED_ON: json.dumps(sampled(weights, lambda name: not HEAD.search(name)), separators=(",", ":"))}


def of_these(lying: Source, named: Sequence[Source], others: Iterable[Source], *, allowed: bool) -> Source:
    """What lies beside, unless it was measured on other weights than it lies beside.

    A sum or a rounding that comes out differently, as an adapter's may, is no proof; nor is anything without samples,
    which foreign files and those of earlier versions are.

    Args:
        lying: importance or Gram matrices, as opened.
        named: as opened, what it may have been measured on.
        others: of the same recipe, to say whose it is.
        allowed: go on, with a warning.

    Raises:
        RecipeError: it was measured on others.
        SourceError: its samples can't be read, or the weights can't.
    """
    if not (samples := _samples(lying)):
        return lying
    seen = [compared(samples, source.weights) for source in named]
    if any(one.same for one in seen):
        return lying
    other = next((source for source in others if _is_it(compared(samples, source.weights), seen)), None)
    if other is None and not all(one.certain for one in seen):
        return lying
    found, expected = f"{lying.text} was measured on {_whose(lying, other, seen)}", _called(named[0])
    if allowed:
        return lying.noted(Note(f"{lying.role}: {found}, not on {expected}", where=lying.where))
    raise RecipeError(
        f"{lying.role}: {found}",
        expected=expected,
        todo=f"Name what `agentmerge {_command(lying)}` made of that, or set inputs.measured: allow (--measured allow) "
        "to merge with this all the same.",
        where=lying.where,
    )


def _is_it(found: Compared, seen: Iterable[Compared]) -> bool:
    """Whether another source is what was sampled, by a tensor in which those that were named are not."""
    return found.same and all(found.equal - one.equal for one in seen)


def _whose(lying: Source, other: Source | None, seen: Sequence[Compared]) -> str:
    if other is not None:
        return _called(other)
    model = json_or_nothing(lying.folder.path / f"{_command(lying)}.json").get("model")
    source = model.get("source") if isinstance(model, dict) else None
    return f"other weights{f' ({abbreviated(source)})' if source else ''}: {seen[0].certain} differs"


def _command(lying: Source) -> str:
    """That measures it."""
    return "importance" if lying.role is not None and lying.role.beside == "importance" else "grams"


def _called(source: Source) -> str:
    role = source.role
    return f"{CALLED.get(role, role) if role is not None else 'it'} ({source.text})"


def _samples(lying: Source) -> Mapping[str, Sample]:
    text = lying.metadata.get(MEASURED_ON, "{}")
    try:
        return {name: _sample(*fields) for name, fields in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        raise SourceError(
            f"{lying.text}: the metadata's '{MEASURED_ON}' is {text[:80]!r}",
            expected="a JSON object of tensors, each as [dtype, shape, digest]",
            todo="Measure again, with `agentmerge importance` or `agentmerge grams`.",
            where=lying.where,
        ) from None


def _sample(dtype: Any, shape: Any, digest: Any) -> Sample:
    return Sample(str(dtype), tuple(map(int, shape)), str(digest))
