"""Sizes in bytes as people write them: "5GB", "8MB", "1GiB"."""

from __future__ import annotations

from pydantic import ByteSize, TypeAdapter, ValidationError

from agentmerge.errors import RecipeError
from agentmerge.values import Size


def parse_size(text: str) -> int:
    """Bytes of a size such as "5GB", "4KB", "1.5MB", "1GiB" or "123"; units in any case.

    Raises:
        RecipeError: it is not a size, or less than a byte.
    """
    try:
        size = int(TypeAdapter(Size).validate_python(text.strip()))
    except ValidationError as error:
        raise RecipeError(f"{text!r} is not a size", expected="for example 5GB, 8MB or 1GiB") from error
    if size < 1:
        raise RecipeError(f"{text!r} is {size} bytes", expected="at least 1")
    return size


def format_size(n: int) -> str:
    """Bytes in the largest fitting decimal unit: "988.1MB"."""
    return ByteSize(n).human_readable(decimal=True)
