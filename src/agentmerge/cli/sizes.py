"""Sizes in bytes as people write them: "5GB", "8MB", "1GiB". Knows nothing else."""

from __future__ import annotations

import re
from decimal import Decimal

from agentmerge.errors import RecipeError

DECIMAL_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
BINARY_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

_UNITS = {unit.lower(): size for unit, size in (DECIMAL_UNITS | BINARY_UNITS).items()} | {"": 1}
_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of a size such as "5GB", "4KB", "1.5MB", "1GiB" or "123"; units in any case.

    Raises:
        RecipeError: it is not a size, not a whole number of bytes, or 0.
    """
    match = _PATTERN.fullmatch(text.strip())
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise RecipeError(
            f"'{text}' is not a size. Write a number and a unit, for example 5GB, 8MB or 1GiB; "
            f"units: {', '.join(DECIMAL_UNITS | BINARY_UNITS)}; without a unit it is bytes."
        )
    size = Decimal(match[1]) * unit
    if size <= 0 or size != size.to_integral_value():
        raise RecipeError(f"'{text}' is {size:f} bytes; a size is a whole number of bytes, at least 1.")
    return int(size)


def format_size(n: int) -> str:
    """Bytes in the largest decimal unit that leaves at least 1, to one decimal: "988.1 MB", "5 GB"."""
    for unit, size in reversed(DECIMAL_UNITS.items()):
        if unit == "B" or n >= 0.99995 * size:
            break
    return f"{n / size:.1f}".removesuffix(".0") + f" {unit}"
