"""What the package imports is installed with it, or with the extra of the room that imports it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = {"yaml": "pyyaml", "llvmlite": "numba", "pydantic_core": "pydantic"}
"""Of modules that are called otherwise, or come with another one."""
EXTRAS = {"importance": "importance", "harm": "importance", "methods": "importance", "eval": "eval", "report": "report"}
"""By room; a method computes whole matrices with torch where it is installed."""


def test_every_import_is_declared_and_every_declaration_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core, used = names(project["dependencies"]), set[str]()
    for path in (ROOT / "src").rglob("*.py"):
        room = path.relative_to(ROOT / "src/agentmerge").parts[0]
        allowed = core | names(project["optional-dependencies"].get(EXTRAS.get(room, ""), []))
        found = imported(path)
        assert found <= allowed, f"{path}: {found - allowed} is not declared for it"
        used |= found
    assert core <= used, f"declared and never imported: {core - used}"


def names(requirements: list[str]) -> set[str]:
    """The distributions of requirements, in lower case."""
    return {re.split(r"[\[>=<!~; ]", requirement)[0].lower() for requirement in requirements}


def imported(path: Path) -> set[str]:
    """The distributions that a file imports, at its head or late."""
    modules = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            modules.add(node.module.split(".")[0])
    return {DISTRIBUTIONS.get(m, m.replace("_", "-")) for m in modules - {"agentmerge"} - sys.stdlib_module_names}
