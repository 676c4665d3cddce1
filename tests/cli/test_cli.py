"""The command line as a whole."""

import subprocess
import sys

HEAVY = ("numpy", "numba", "torch", "pydantic", "rich.progress", "huggingface_hub")


def test_help_imports_nothing_heavy():
    code = (
        "import sys; sys.argv = ['agentmerge', '--help']\n"
        "from agentmerge.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("[]")


def test_every_command_has_help(run):
    for command in ("merge", "probe", "check", "inspect", "methods", "schema", "synth"):
        ran = run(command, "--help")
        assert ran.code == 0
        assert "Usage" in ran.out


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
