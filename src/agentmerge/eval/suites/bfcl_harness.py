"""bfcl-eval without its vendors' libraries: its data, its prompts, its decoders and its AST checker.

Its checker imports a registry of models, and with it every vendor's client. It asks one thing of an entry: whether "_"
in a function's name stands for ".". Here nobody's does, so where the registry is not imported already, a registry that
says so takes its place while the checker is imported. This module alone does that.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from agentmerge.errors import Problem
from agentmerge.eval.versions import version_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentmerge.eval.request import JSON

DISTRIBUTION = "bfcl-eval"
NEEDED = ("tree_sitter", "tree_sitter_java", "tree_sitter_javascript", "tenacity", "filelock")
"""Modules that the parts used here import."""
INSTALL = (
    "pip install --no-deps bfcl-eval==2026.3.23 tree_sitter==0.21.3 tree-sitter-java==0.21.0 "
    "tree-sitter-javascript==0.21.4 && pip install tenacity filelock"
)
REGISTRY = "bfcl_eval.constants.model_config"
FOLDER = "BFCL_PROJECT_ROOT"
"""Where bfcl-eval makes folders when it is imported, by default among the installed packages."""


def missing() -> list[Problem]:
    """What must be installed; [] where nothing must."""
    absent = [name for name in ("bfcl_eval", *NEEDED) if find_spec(name) is None]
    if not absent:
        return []
    return [Problem(f"bfcl: {', '.join(absent)} not installed", todo=f"{INSTALL}.")]


@dataclass(frozen=True)
class Harness:
    """The parts of bfcl-eval that are used."""

    utils: Any
    handlers: Any
    enums: Any
    checker: Any
    model: str
    """A name that its registry knows, whose functions' names hold no "_" for "."."""

    def entries(self, category: str, *, hints: bool) -> list[dict[str, JSON]]:
        """The questions of a category.

        Args:
            category: one of the 13.
            hints: whether functions tell the programming language, as prompts do and the checker must not see.
        """
        found: list[dict[str, JSON]] = self.utils.load_dataset_entry(category, include_language_specific_hint=hints)
        return found

    def answers(self, category: str) -> dict[str, JSON]:
        """The right answers of an AST category, by the id of the question."""
        return {one["id"]: one["ground_truth"] for one in self.utils.load_ground_truth_entry(category)}

    def prompt(self, entry: dict[str, JSON]) -> list[dict[str, str]]:
        """The chat of a question, with the functions in a system message."""
        chat: list[dict[str, str]] = [dict(message) for message in entry["question"][0]]
        self.handlers.system_prompt_pre_processing_chat_model(chat, entry["function"], entry["id"])
        return chat

    def decode(self, text: str, category: str) -> JSON:
        """Calls in Python's, Java's or JavaScript's words as data; raises whatever its parser raises."""
        wanted = self.enums.ReturnFormat[language_of(category)]
        return self.handlers.default_decode_ast_prompting(text, wanted, False)

    def is_calls(self, decoded: JSON) -> bool:
        """Whether decoded data have the form [{function: {argument: value}}]."""
        return bool(self.utils.is_function_calling_format_output(decoded))

    def is_empty(self, decoded: JSON) -> bool:
        """Whether decoded data hold no call."""
        return bool(self.utils.is_empty_output(decoded))

    def check(self, entry: dict[str, JSON], decoded: JSON, answer: JSON, category: str) -> bool:
        """Whether calls are right, by the AST checker.

        Args:
            entry: the question, without hints.
            decoded: calls.
            answer: the possible values of every argument.
            category: decides how many calls there may be and in which order.
        """
        language = self.enums.Language[language_of(category)]
        found = self.checker.ast_checker(entry["function"], decoded, answer, language, category, self.model)
        return bool(found["valid"])


def language_of(category: str) -> str:
    """PYTHON, JAVA or JAVASCRIPT: the name in bfcl-eval's enums."""
    return {"simple_java": "JAVA", "simple_javascript": "JAVASCRIPT"}.get(category, "PYTHON")


@cache
def harness() -> Harness:
    """Import it, once."""
    with _own_folder(), _light_registry() as registry:
        checker = import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
        return Harness(
            utils=import_module("bfcl_eval.utils"),
            handlers=import_module("bfcl_eval.model_handler.utils"),
            enums=import_module("bfcl_eval.constants.enums"),
            checker=checker,
            model=_plain_model(registry.MODEL_CONFIG_MAPPING),
        )


@cache
def data_folder() -> Path:
    """Where the wheel has its data; found without importing anything of it."""
    spec = find_spec("bfcl_eval")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def data_file(category: str) -> Path:
    """The questions of a category."""
    return data_folder() / f"BFCL_v4_{category}.json"


def version() -> str:
    """Of bfcl-eval; "" where it is not installed."""
    return version_of(DISTRIBUTION) or ""


class _Nobody(dict[str, Any]):
    """A registry in which every model's function names are as they are."""

    def __missing__(self, name: str) -> Any:
        return SimpleNamespace(underscore_to_dot=False)


@contextmanager
def _light_registry() -> Iterator[Any]:
    """The registry that is there, or ours for as long as something is imported."""
    if REGISTRY in sys.modules:
        yield sys.modules[REGISTRY]
        return
    ours = ModuleType(REGISTRY)
    ours.MODEL_CONFIG_MAPPING = _Nobody()  # type: ignore[attr-defined]
    sys.modules[REGISTRY] = ours
    try:
        yield ours
    finally:
        sys.modules.pop(REGISTRY, None)


def _plain_model(registry: Any) -> str:
    if isinstance(registry, _Nobody):
        return "any"
    return str(next(name for name, entry in registry.items() if "_" not in name and not entry.underscore_to_dot))


@contextmanager
def _own_folder() -> Iterator[None]:
    """A folder for what bfcl-eval makes at import; it is removed when this process ends."""
    before = os.environ.get(FOLDER)
    if before is None:
        scratch = tempfile.mkdtemp(prefix="agentmerge-bfcl-")
        atexit.register(shutil.rmtree, scratch, ignore_errors=True)
        os.environ[FOLDER] = scratch
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(FOLDER, None)
