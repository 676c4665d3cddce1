"""From a name to a method: those of this folder, registered ones, and those of installed packages."""

from __future__ import annotations

import sys
from functools import cache, lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from agentmerge import methods as room
from agentmerge.errors import RecipeError, Where, did_you_mean, shown
from agentmerge.methods.base import MergeMethod
from agentmerge.methods.names import elsewhere

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from types import ModuleType

GROUP = "agentmerge.methods"
"""Entry point group: each entry names a MergeMethod subclass."""
ORDER = (
    *("ram", "task_arithmetic", "ties", "dare", "breadcrumbs", "della", "disentangle", "sce", "slerp", "model_stock"),
    *("nearswap", "fisher", "regmean", "esm", "wudi", "resmerge", "tsv_m", "iso", "svc", "region", "calibrate"),
)
"""In which files are listed: the paper's method, what it is compared with, and what is ours. Others follow by name."""

_registered: dict[str, type[MergeMethod]] = {}


def register(method: type[MergeMethod]) -> type[MergeMethod]:
    """Make a method known in this process; usable as a class decorator. A package uses the entry point instead.

    Raises:
        RecipeError: the class has no names, or one of them belongs to another method.
    """
    if not method.names():
        raise RecipeError(f"{method.__name__}: field 'name' must be a Literal of the method's names, found none.")
    for name in method.names():
        other = known_methods().get(name, method)
        if other is not method:
            raise RecipeError(
                f"{method.__name__}: the name '{name}' belongs to {other.__module__}.{other.__name__} already."
            )
    _registered.update(dict.fromkeys(method.names(), method))
    return method


def known_methods() -> dict[str, type[MergeMethod]]:
    """Every method by each of its names: built in, registered, or of an installed package; built-in ones win."""
    found = _installed() | _registered
    for method in _built_in():
        found |= dict.fromkeys(method.names(), method)
    return found


def resolve_method(settings: str | dict[str, Any], where: str = "method") -> MergeMethod:
    """The method that a recipe's `method` means: a name, or a mapping with a name and settings.

    Args:
        settings: as the user wrote them.
        where: the field that holds them; messages start with it.

    Raises:
        RecipeError: no or an unknown name; a setting is unknown or out of range.
    """
    if not isinstance(settings, str | dict):
        found = f"{where}: expected a name or a mapping with a name, found {shown(settings)}."
        raise RecipeError(found, where=Where(path=where))
    chosen = {"name": settings} if isinstance(settings, str) else dict(settings)
    name, place = chosen.get("name"), Where(path=f"{where}.name")
    if not isinstance(name, str):
        raise RecipeError(f"{where}.name: expected the name of a method, found {shown(name)}.", where=place)
    methods = known_methods()
    spellings = {alias: target for m in methods.values() for alias, target in m.aliases.items()}
    chosen["name"] = spellings.get(name, name)
    if chosen["name"] not in methods:
        hint = elsewhere(name) or did_you_mean(name, methods.keys() | spellings.keys()).strip()
        raise RecipeError(f"{where}.name: no method '{name}'", todo=" ".join([hint, *_broken()]), where=place)
    return methods[chosen["name"]].parse(chosen, where)


@cache
def _built_in() -> tuple[type[MergeMethod], ...]:
    """The methods of this folder, each file's in the order in which they stand there."""
    files = sorted(module.name for module in iter_modules(room.__path__))
    files.sort(key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    modules = [import_module(f"{room.__name__}.{name}") for name in files]
    return tuple(method for module in modules for method in _methods_in(module))


def _methods_in(module: ModuleType) -> list[type[MergeMethod]]:
    """The classes with names of their own that a module defines; abstract ones have none."""
    return [
        found
        for found in vars(module).values()
        if isinstance(found, type)
        and issubclass(found, MergeMethod)
        and found.__module__ == module.__name__
        and found.names()
    ]


def _installed() -> dict[str, type[MergeMethod]]:
    found: dict[str, type[MergeMethod]] = {}
    for entry in _entries():
        method = _load(entry)
        if not isinstance(method, str):
            found |= dict.fromkeys(method.names(), method)
    return found


def _broken() -> list[str]:
    """What is wrong with the entry points that name no method."""
    return [found for entry in _entries() if isinstance(found := _load(entry), str)]


def _entries() -> tuple[EntryPoint, ...]:
    """Of the packages that are installed now: read again only where a folder of sys.path is another or changed."""
    return _entries_of(tuple((path, _changed(path)) for path in sys.path))


@lru_cache(maxsize=1)
def _entries_of(searched: tuple[tuple[str, int | None], ...]) -> tuple[EntryPoint, ...]:
    """Whoever installs a package changes its folder; to read those of every package takes tens of milliseconds."""
    return tuple(entry_points(group=GROUP))


def _changed(path: str) -> int | None:
    """When, in ns; None for what is not there."""
    try:
        return Path(path).stat().st_mtime_ns
    except (OSError, ValueError):
        return None


def _load(entry: EntryPoint) -> type[MergeMethod] | str:
    """The method of an entry point, or why there is none; a broken package must not stop the other methods."""
    place = f"entry point {GROUP}: {entry.name} = {entry.value}"
    try:
        method = entry.load()
    except Exception as error:
        return f"{place} can't be loaded: {error}"
    if not (isinstance(method, type) and issubclass(method, MergeMethod)):
        return f"{place} is no MergeMethod subclass."
    return method
