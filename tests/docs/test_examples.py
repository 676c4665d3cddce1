"""What the documents show works as printed: every block of every page is run, page by page, from top to bottom."""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

from agentmerge.cli import main
from agentmerge.cli.schema import recipe_table
from agentmerge.methods import registry
from agentmerge.recipe import Recipe
from agentmerge.testing import (
    make_agents,
    random_base,
    random_gram,
    random_importance,
    read_checkpoint,
    write_checkpoint,
)

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"^```(\w*)(?: (notest))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)

FOLDERS = {
    "base": ("BASE", "agents/base", "path/to/base"),
    "code": ("CODER", "agents/code", "path/to/coder"),
    "tool": ("TOOLER", "agents/tool", "path/to/tooler"),
    "memory": ("agents/memory", "path/to/reader"),
}
"""By what names the documents call a small set of agents."""
ANY = "--base BASE --agent code=CODER --agent tool=TOOLER --out"
"""What "..." stands for in a command."""


RECIPE = {"base": "BASE", "agents": {"code": "CODER", "tool": "TOOLER"}, "method": "ram_plus"}
"""recipe.yaml, where a page shows none."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Those that are to be run."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(found[1], found[3], text.count("\n", 0, found.start()) + 1)
        for found in FENCE.finditer(text)
        if not found[2]
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in but for the agents that the documents speak of."""
    made = make_agents(tmp_path / "made")
    for name, path in {"base": made.base, **made.agents}.items():
        for link in FOLDERS[name]:
            (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / link).symlink_to(path)
    write_checkpoint(tmp_path / "path/to/other", random_base(9))
    rng = np.random.default_rng(0)
    shapes = {name: array.shape for name, array in read_checkpoint(made.base).items()}
    for name in ("code", "tool"):
        importance = {tensor: random_importance(rng, shape) for tensor, shape in shapes.items()}
        write_checkpoint(tmp_path / "importance" / name, importance, config={})
        sides = {tensor: (shape[-1],) * 2 for tensor, shape in shapes.items() if tensor.endswith("proj.weight")}
        grams = {tensor: random_gram(rng, shape) for tensor, shape in sides.items()}
        write_checkpoint(tmp_path / "grams" / name, grams, config={})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    return tmp_path


class Reader:
    """Somebody who reads a page and does what it shows."""

    def __init__(self, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.page, self._monkeypatch = page, monkeypatch
        self._module = ModuleType(page.stem.replace("-", "_").lower())
        monkeypatch.setitem(sys.modules, self._module.__name__, self._module)
        self._commands = 0

    def run(self) -> None:
        """Every block in its order; what a command reads is written before."""
        shown = blocks(self.page)
        first = next((block.text for block in shown if block.language == "yaml"), yaml.safe_dump(RECIPE))
        Path("mergekit-config.yml" if self._of_mergekit else "recipe.yaml").write_text(first)
        for block in shown:
            self._do(block)

    @property
    def _of_mergekit(self) -> bool:
        return self.page.name == "mergekit.md"

    def _do(self, block: Block) -> None:
        match block.language:
            case "python":
                exec(compile("\n" * block.line + block.text, self.page, "exec"), self._module.__dict__)
            case "sh":
                for line in block.text.splitlines():
                    self._command(line)
            case "yaml" if not self._of_mergekit:
                Recipe.parse(yaml.safe_load(block.text))
            case "toml":
                tomllib.loads(block.text)
            case "text" | "yaml":
                pass
            case other:
                raise AssertionError(
                    f"{self.page.name}:{block.line}: a block of {other!r}, expected python, sh, text ..."
                )

    def _command(self, line: str) -> None:
        if not line.startswith("agentmerge "):
            return
        self._commands += 1
        arguments = line.replace("...", f"{ANY} out-{self._commands}")
        self._monkeypatch.setattr(sys, "argv", shlex.split(arguments, comments=True))
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code, line


@pytest.mark.usefixtures("folder", "unsynced")
@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_every_block_of_a_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentmerge.eval.generate.available", lambda: False)
    Reader(page, monkeypatch).run()


def test_the_first_command_runs_in_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    install, *commands = blocks(README)[0].text.strip().split(" && ")
    assert install == "python -m pip install -e ."
    monkeypatch.setattr("agentmerge.eval.generate.available", lambda: False)
    assert commands == ["agentmerge demo"]
    for command in [*commands, "agentmerge synth --out agents"]:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code, command
    text = README.read_text(encoding="utf-8")
    assert "`agentmerge synth --out agents`" in text
    (example,) = (block.text for block in blocks(README) if block.language == "python")
    exec(compile(example, "README.md", "exec"), {})
    assert "code" in capsys.readouterr().out


def test_the_second_command_is_the_one_that_ci_starts_with() -> None:
    command = blocks(README)[1].text.strip()
    assert command == "python -m pip install -e '.[test]' && pytest"
    steps = [line for line in (ROOT / ".ci/run").read_text().splitlines() if "pip install" in line or "pytest" in line]
    assert steps[0] == command


def test_the_fields_of_a_recipe_are_those_that_the_model_has() -> None:
    page = (ROOT / "docs/recipe.md").read_text(encoding="utf-8")
    _before, mark, table = page.partition("<!-- recipe fields -->\n")
    assert mark
    assert table.partition("<!-- recipe fields -->")[0] == recipe_table(), "put there what recipe_table() returns"


@pytest.mark.parametrize("page", [README, ROOT / "docs/design.md"], ids=lambda page: page.name)
def test_every_room_of_the_house_is_named(page: Path) -> None:
    """README has a tree, docs/design.md a table."""
    text = page.read_text(encoding="utf-8")
    rooms = {path.name for path in (ROOT / "src/agentmerge").iterdir() if (path / "__init__.py").exists()}
    named = set(re.findall(r"(?:^|\| |, )[ `]*([a-z]+)/(?=[ ,`]|$)", text, re.MULTILINE))
    assert rooms <= named, rooms - named


def test_no_file_of_the_house_is_longer_than_the_page_says() -> None:
    page = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    (most,) = re.findall(r"^\| largest file, lines \| \d+ \| \d+ \| (\d+) \|", page, re.MULTILINE)
    files = {path: path.read_bytes().count(b"\n") for path in (ROOT / "src/agentmerge").rglob("*.py")}
    assert not {path: lines for path, lines in files.items() if lines > int(most)}
    assert len(files) > 100


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, ROOT / "experiments/tiny_agents/README.md"], ids=lambda path: path.name
)
def test_every_file_that_a_document_names_is_there(document: Path) -> None:
    roots = ROOT, ROOT / "src/agentmerge", document.parent
    for name in set(re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|js|yaml))`", document.read_text(encoding="utf-8"))):
        assert any((root / name).exists() for root in roots), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_of_a_document_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (document.parent / target).exists(), target
