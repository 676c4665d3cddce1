"""The command line as a whole."""

import subprocess
import sys

import pytest

from agentmerge.cli import COMMANDS

HEAVY = ("numpy", "numba", "torch", "pydantic", "yaml", "rich.progress", "huggingface_hub")


@pytest.mark.parametrize("words", [["--help"], ["--version"], []])
def test_help_imports_nothing_heavy_and_no_command(words):
    code = (
        f"import sys; sys.argv = ['agentmerge', *{words}]\n"
        "from agentmerge.cli import COMMANDS, main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"heavy = [name for name in {HEAVY} if name in sys.modules]\n"
        "print(heavy + [name for name in COMMANDS if f'agentmerge.cli.{name}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("[]")


def test_the_package_is_a_command_too():
    done = subprocess.run([sys.executable, "-m", "agentmerge", "--help"], capture_output=True, text=True, check=True)
    assert "Usage: python -m agentmerge" in done.stdout
    for name in COMMANDS:
        assert f"\n  {name} " in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(run, command):
    ran = run(command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert "Usage" in ran.out
    assert COMMANDS[command] in " ".join(ran.out.split())


def test_a_misspelt_command_is_told(run):
    ran = run("mrege")
    assert ran.code == 2
    assert "No such command 'mrege'" in ran.err


def test_the_version_is_the_packages(run):
    from agentmerge import __version__

    assert run("--version").out.strip() == __version__


def test_a_bug_shows_its_traceback_and_exits_with_1(tmp_path):
    code = (
        "import sys; sys.argv = ['agentmerge', 'inspect', 'x']\n"
        "import agentmerge.record as record\n"
        "record.MergeRecord.load = lambda folder: 1 / 0\n"
        "from agentmerge.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("words", [["methods"], ["methods", "--json"], ["merge", "--help"]])
def test_closed_standard_output_is_told_and_no_bug(words, run, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    ran = run(*words)
    assert (ran.code, ran.err) == (2, "OutputError: standard output: can't be written: Bad file descriptor.\n")


def test_closed_standard_error_hears_nothing_and_standard_output_gets_none_of_it(run, monkeypatch, sources):
    monkeypatch.setattr(sys, "stderr", None)
    ran = run("check", *sources, "--method", "none")
    assert (ran.code, ran.out) == (2, "")


def test_work_that_is_done_is_no_failure_where_standard_output_is_closed(run, monkeypatch, sources, tmp_path):
    delta = tmp_path / "p.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        ran = run("pack", "--base", sources[1], "--agent", sources[3].partition("=")[2], "--out", str(delta))
    assert ran.code == 0
    assert ran.err == f"The delta is complete in {delta}; not all that was said of it was read.\n"
