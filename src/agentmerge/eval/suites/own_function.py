"""A function of the user's own, named as FILE.py:NAME or MODULE:NAME."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentmerge.errors import EvalError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


@cache
def load_function(place: str, known: Sequence[str]) -> Any:
    """Import it.

    Args:
        place: FILE.py:NAME or MODULE:NAME.
        known: words that would have done in its place, for did-you-mean.

    Raises:
        EvalError: there is no such function.
    """
    module, colon, name = place.rpartition(":")
    if not colon:
        expected = "one of these words, FILE.py:NAME or MODULE:NAME"
        raise EvalError(f"scoring: '{place}'", expected=expected, todo=did_you_mean(place, known).strip())
    try:
        function = getattr(_module(module), name)
    except AttributeError:
        raise EvalError(f"{place}: {module} has no {name}") from None
    except (ImportError, OSError, SyntaxError) as error:
        raise EvalError(f"{place}: {module} can't be imported: {error}") from None
    if not callable(function):
        raise EvalError(f"{place}: is no function")
    return function


def _module(name: str) -> ModuleType:
    if not name.endswith(".py"):
        return import_module(name)
    path = Path(name)
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
