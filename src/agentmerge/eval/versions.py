"""Which distributions are installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def version_of(distribution: str) -> str | None:
    """Of an installed distribution; None where it is not there."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
