"""From a name to a method: the built-in ones and those of installed packages. Knows no recipes."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

from agentmerge.errors import RecipeError, did_you_mean
from agentmerge.methods.base import MergeMethod
from agentmerge.methods.calibrate import Calibrate
from agentmerge.methods.dare import Dare
from agentmerge.methods.fisher import Fisher
from agentmerge.methods.ram import Ram
from agentmerge.methods.region import Region
from agentmerge.methods.task_arithmetic import Linear, TaskArithmetic
from agentmerge.methods.ties import Ties
from agentmerge.methods.wudi import Wudi

GROUP = "agentmerge.methods"
"""Entry point group: each entry names a MergeMethod subclass."""

_BUILT_IN: tuple[type[MergeMethod], ...] = (
    Ram,
    TaskArithmetic,
    Linear,
    Ties,
    Dare,
    Fisher,
    Wudi,
    Region,
    Calibrate,
)
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
    for method in _BUILT_IN:
        found |= dict.fromkeys(method.names(), method)
    return found


def resolve_method(settings: str | dict[str, Any]) -> MergeMethod:
    """The method that a recipe's `method` means: a name, or a mapping with a name and settings.

    Raises:
        RecipeError: no or an unknown name; a setting is unknown or out of range.
    """
    if not isinstance(settings, str | dict):
        raise RecipeError(f"method: expected a name or a mapping with a name, found {settings!r:.80}.")
    chosen = {"name": settings} if isinstance(settings, str) else dict(settings)
    name = chosen.get("name")
    if not isinstance(name, str):
        raise RecipeError(f"method.name: expected the name of a method, found {name!r}.")
    methods = known_methods()
    spellings = {alias: target for m in methods.values() for alias, target in m.aliases.items()}
    chosen["name"] = spellings.get(name, name)
    if chosen["name"] not in methods:
        hint = did_you_mean(name, methods.keys() | spellings.keys())
        raise RecipeError(f"method.name: no method '{name}'.{' '.join([hint, *_broken()])}")
    return methods[chosen["name"]].parse(chosen)


def _installed() -> dict[str, type[MergeMethod]]:
    found: dict[str, type[MergeMethod]] = {}
    for entry in entry_points(group=GROUP):
        method = _load(entry)
        if not isinstance(method, str):
            found |= dict.fromkeys(method.names(), method)
    return found


def _broken() -> list[str]:
    """What is wrong with the entry points that name no method."""
    return [found for entry in entry_points(group=GROUP) if isinstance(found := _load(entry), str)]


def _load(entry: Any) -> type[MergeMethod] | str:
    """The method of an entry point, or why there is none; a broken package must not stop the other methods."""
    place = f"entry point {GROUP}: {entry.name} = {entry.value}"
    try:
        method = entry.load()
    except Exception as error:
        return f"{place} can't be loaded: {error}"
    if not (isinstance(method, type) and issubclass(method, MergeMethod)):
        return f"{place} is no MergeMethod subclass."
    return method
