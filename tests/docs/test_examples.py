"""What the documents show works as printed."""

import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from agentmerge.cli import main
from agentmerge.recipe import Recipe

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_first_command_and_the_python_example_run_in_an_empty_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    install, *commands = blocks("sh")[0].strip().split(" && ")
    assert install == "python -m pip install -e ."
    monkeypatch.setattr("agentmerge.eval.generate.available", lambda: False)
    assert commands == ["agentmerge demo"]
    for command in [*commands, "agentmerge synth --out agents"]:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code, command
    assert "`agentmerge synth --out agents`" in README
    exec(compile(blocks("python")[0], "README.md", "exec"), {})
    assert "code" in capsys.readouterr().out


def test_the_second_command_is_the_one_that_ci_starts_with():
    command = blocks("sh")[1].strip()
    assert command == "python -m pip install -e '.[test]' && pytest"
    steps = [line for line in (ROOT / ".ci/run").read_text().splitlines() if "pip install" in line or "pytest" in line]
    assert steps[0] == command


def test_the_recipe_in_the_readme_is_valid():
    Recipe.parse(yaml.safe_load(blocks("yaml")[0]))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_of_a_document_leads_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (document.parent / target).exists(), target
