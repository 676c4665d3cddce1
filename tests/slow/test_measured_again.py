"""A measurement that is finished is not made again by the same command, and is by no other. Needs transformers."""

import os
import subprocess
import sys

import pytest

from agentmerge.errors import OutputError
from agentmerge.importance.grams import GramOptions, measure_grams
from agentmerge.importance.prepare import Options
from agentmerge.importance.run import measure
from tests.slow.models import make_data, make_model

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

COMMANDS = {"importance": (measure, Options), "grams": (measure_grams, GramOptions)}


@pytest.fixture(params=COMMANDS)
def command(request):
    return request.param


@pytest.fixture
def again(command, tmp_path):
    """Measure what is measured already, with other options or not; the folder of the model, the data, the result."""
    model, data, out = make_model(tmp_path / "model", "tied"), make_data(tmp_path), tmp_path / "out"
    take, kind = COMMANDS[command]

    def once_more(again=True, **options):
        settings = {"examples": 5, "device": "cpu", "dtype": "float32", **options}
        return take(model, data, out, kind(**settings), again=again)

    once_more.record, once_more.model, once_more.data, once_more.out = once_more(), model, data, out
    return once_more


def state(folder):
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_its_record_is_given_and_nothing_is_written(again):
    before = state(again.out)
    assert again() == again.record
    assert state(again.out) == before
    assert again(every=3) == again.record  # how often is saved is no matter
    with pytest.raises(OutputError, match="folder is not empty"):
        again(again=False)


@pytest.mark.parametrize("changed", ["options", "data", "model", "cut", "newer", "record"])
def test_of_anything_else_and_of_what_was_changed_since_it_is_told_that_it_is_there(again, changed):
    weights, options = again.out / "model.safetensors", {}
    if changed == "options":
        options = {"max_length": 40}
    elif changed == "data":
        again.data.write_text(again.data.read_text().replace("\n", "\n\n", 1) + "\n")
    elif changed == "model":
        os.utime(again.model / "model.safetensors")
    elif changed == "cut":
        found = weights.stat()
        weights.write_bytes(weights.read_bytes()[:-1])
        os.utime(weights, ns=(found.st_atime_ns, found.st_mtime_ns))
    elif changed == "newer":
        weights.write_bytes(weights.read_bytes())
    else:
        next(path for path in again.out.iterdir() if path.suffix == ".json").write_text("{}")
    before = state(again.out)
    with pytest.raises(OutputError, match="folder is not empty"):
        again(**options)
    assert state(again.out) == before


def test_the_command_line_says_so(command, again):
    arguments = [command, again.model, "--data", again.data, "--out", again.out, "--examples", "5", "--device", "cpu"]
    main = [sys.executable, "-c", "from agentmerge.cli import main; main()"]
    ran = subprocess.run([*main, *arguments], capture_output=True, text=True)
    assert (ran.returncode, "Already complete" in ran.stdout) == (0, True), ran.stderr
    ran = subprocess.run([*main, *arguments, "--max-length", "40"], capture_output=True, text=True)
    assert (ran.returncode, "folder is not empty" in ran.stderr) == (2, True), ran.stderr
