"""How a command ends where something around it does: readers that go away, full disks, signals, narrow limits."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentmerge.record import MergeRecord

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow
"""Every one starts processes, a minute and a half of them together."""

COMMAND = [sys.executable, "-m", "agentmerge"]
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")


def started(words: list[str], **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload, no-any-return]


def to_nobody(*words: str) -> tuple[int, str]:
    """Run it with a standard output whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    process = started([*words], stdout=writing)
    os.close(writing)
    said = process.communicate()[1]
    return process.returncode, said


def to_a_full_disk(*words: str) -> tuple[int, str]:
    with FULL.open("w") as full:
        process = started([*words], stdout=full)
        said = process.communicate()[1]
    return process.returncode, said


# standard output


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_merge_whose_reader_went_away_is_no_failure(more, sources, tmp_path):
    code, said = to_nobody("merge", *sources, "--out", f"{tmp_path}/out", *more)
    assert (code, said) == (0, f"The merge is complete in {tmp_path}/out; not all that was said of it was read.\n")
    assert (tmp_path / "out" / "config.json").exists()


@needs_full
@pytest.mark.parametrize("more", [[], ["--json"], ["--sweep", "rescale=0.1,0.2"]])
def test_a_merge_says_that_it_is_complete_although_standard_output_is_full(more, sources, tmp_path):
    code, said = to_a_full_disk("merge", *sources, "--out", f"{tmp_path}/out", *more)
    full = "OutputError: standard output: can't be written: No space left on device."
    assert (code, said) == (2, f"{full} The merge is complete in {tmp_path}/out.\n")
    assert list((tmp_path / "out").rglob("config.json"))


def closed(number: int) -> Callable[[], None]:
    return lambda: os.close(number)


@pytest.mark.parametrize("number", [1, 2])
def test_a_merge_with_a_closed_standard_stream_is_whole(number, sources, tmp_path):
    words = ["merge", *sources, "--out", f"{tmp_path}/out"]
    process = started(words, preexec_fn=closed(number), stdout=subprocess.DEVNULL)
    told = f"The merge is complete in {tmp_path}/out; not all that was said of it was read.\n"
    assert (process.communicate()[1], process.returncode) == (told if number == 1 else "", 0)
    assert MergeRecord.load(tmp_path / "out").output.bytes == (tmp_path / "out/model.safetensors").stat().st_size


def test_a_probe_that_wrote_its_survey_is_no_failure_either(sources, tmp_path):
    code, said = to_nobody("probe", *sources, "--json", f"{tmp_path}/s.json")
    assert code == 0
    assert said.startswith(f"The probe is complete in {tmp_path}/s.json; ")
    assert json.loads((tmp_path / "s.json").read_text())["format"] == "agentmerge.survey/1"


@pytest.mark.parametrize("words", [["probe"], ["probe", "--json", "-"], ["check"]])
def test_what_only_prints_tells_that_it_could_not(words, sources):
    code, said = to_nobody(*words, *sources)
    assert (code, said) == (2, "OutputError: standard output: can't be written: Broken pipe.\n")


@needs_full
@pytest.mark.parametrize("words", [["--help"], ["--version"], ["methods"], ["schema"], ["merge", "--help"]])
def test_a_full_disk_behind_any_command_is_one_line(words):
    code, said = to_a_full_disk(*words)
    assert (code, said) == (2, "OutputError: standard output: can't be written: No space left on device.\n")


@needs_full
def test_a_full_standard_error_stops_nothing(sources, agents, tmp_path):
    shutil.copytree(agents / "base", tmp_path / "same")  # which is worth a warning
    words = ["merge", *sources, "--agent", f"same={tmp_path}/same", "--unchanged", "allow", "--out", f"{tmp_path}/out"]
    with FULL.open("w") as full:
        done = subprocess.run([*COMMAND, *words], stdout=subprocess.PIPE, stderr=full, check=False)
    assert done.returncode == 0
    assert (tmp_path / "out" / "config.json").exists()


@needs_full
def test_a_report_on_a_full_disk_names_the_file(run, sources):
    ran = run("probe", *sources, "--html", str(FULL))
    assert (ran.code, ran.err) == (
        2,
        "OutputError: /dev/full: can't be written: No space left on device. Choose another place.\n",
    )


# signals


@pytest.fixture
def merging(sources, tmp_path) -> Callable[[], subprocess.Popen[str]]:
    """A merge in the middle of its work: it waits for a survey that never comes."""
    os.mkfifo(tmp_path / "survey.json")

    def start() -> subprocess.Popen[str]:
        words = ["merge", *sources, "--out", f"{tmp_path}/out", "--survey", f"{tmp_path}/survey.json"]
        process = started(words)
        fd = os.open(tmp_path / "survey.json", os.O_WRONLY)  # waits until the merge reads
        time.sleep(0.1)
        process.fd = fd  # type: ignore[attr-defined]
        return process

    return start


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [("SIGINT", 130, "Interrupted"), ("SIGTERM", 143, "Stopped by SIGTERM"), ("SIGHUP", 129, "Stopped by SIGHUP")],
)
def test_a_signal_ends_a_merge_with_its_code_and_a_line(name, code, said, merging):
    process = merging()
    process.send_signal(getattr(signal, name))
    os.close(process.fd)  # a signal that came just before the read is looked at when that ends
    assert process.communicate()[1] == f"{said}; the same command resumes.\n"
    assert process.returncode == code


def test_a_signal_that_is_to_be_ignored_is(sources, tmp_path):
    """As nohup does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = started(["merge", *sources, "--out", f"{tmp_path}/out", "--quiet"])
        time.sleep(0.5)
        process.send_signal(signal.SIGHUP)
        assert process.communicate()[1] == ""
    finally:
        signal.signal(signal.SIGHUP, before)
    assert process.returncode == 0


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_the_libraries_are_imported_is_one_line_too(name, code, tmp_path):
    (tmp_path / "numpy.py").write_text(f"import os, signal; os.kill(os.getpid(), signal.{name})")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    process = started(["merge", "--base", "b", "--agent", "a=a", "--out", "o"], env=environment)
    said = process.communicate()[1]
    assert process.returncode == code
    assert said.endswith("Nothing is half-written; run the same command again.\n")
    assert said.count("\n") == 1


# narrow limits


def limited(what: int, most: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(what, (most, most))


@pytest.mark.parametrize("most", [6, 8, 11, 15])
def test_few_descriptors_are_told_with_the_remedy(most, sources, tmp_path):
    words = ["merge", *sources, "--out", f"{tmp_path}/out", "--quiet"]
    process = started(words, preexec_fn=limited(resource.RLIMIT_NOFILE, most))
    said = process.communicate()[1]
    assert process.returncode in (0, 2)
    assert "Traceback" not in said
    assert process.returncode == 0 or "ulimit -n" in said


@pytest.mark.skipif(sys.platform != "linux", reason="address space is limited on Linux alone")
def test_little_address_space_is_told_and_is_no_traceback(sources, tmp_path):
    words = ["merge", *sources, "--out", f"{tmp_path}/out", "--quiet"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    limit = limited(resource.RLIMIT_AS, 300_000_000)
    process = started(words, preexec_fn=limit, env=environment)
    said = process.communicate()[1]
    assert process.returncode == 2
    assert "Traceback" not in said
    assert "ulimit -v" in said


# places that are refused at once


@pytest.mark.parametrize(
    "words", [["merge", "--dry-run", "--out"], ["merge", "--out"], ["probe", "--json"], ["probe", "--html"]]
)
def test_a_name_that_is_too_long_is_told(words, run, sources):
    ran = run(words[0], *sources, *words[1:], "x" * 300)
    assert ran.code == 2
    assert "File name too long" in ran.err


@pytest.mark.parametrize("out", ["base/x", "base", "code/a/b", "base/config.json", "base/config.json/x", "."])
def test_a_dry_run_refuses_what_a_merge_refuses(out, run, sources, agents):
    ran = [run("merge", *sources, "--out", f"{agents}/{out}", *more) for more in ([], ["--dry-run"])]
    assert [one.code for one in ran] == [2, 2]
    assert ran[0].err == ran[1].err
    assert ran[0].err.startswith("OutputError: ")


@pytest.mark.parametrize("name", ["y" * 239, "y" * 240, "y" * 255])
def test_a_name_with_no_room_for_those_beside_it_is_told_before_the_work(name, run, sources, tmp_path):
    ran = [run("merge", *sources, "--out", f"{tmp_path}/{name}", *more) for more in (["--dry-run"], [])]
    assert [one.code for one in ran] == ([0, 0] if len(name) < 240 else [2, 2])


@pytest.mark.parametrize("option", ["--json", "--html"])
@pytest.mark.parametrize("file", ["base/config.json", "code/model.safetensors", "recipe.yaml"])
def test_a_probe_replaces_nothing_that_it_reads(option, file, run, tmp_path, agents):
    shutil.copytree(agents, tmp_path, dirs_exist_ok=True)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"base": f"{tmp_path}/base", "agents": {"code": f"{tmp_path}/code"}, "method": "ram"}))
    (tmp_path / "link").symlink_to(tmp_path / file)
    before = (tmp_path / file).read_bytes()
    for place in (file, "link"):
        ran = run("probe", str(recipe), option, f"{tmp_path}/{place}")
        assert ran.code == 2
        assert "would be replaced" in ran.err
    assert (tmp_path / file).read_bytes() == before


@pytest.mark.parametrize("text", ["hf://org/base", "org/base@v1"])
def test_nor_does_it_where_a_source_is_named_by_its_id_on_the_hub(text, run, tmp_path, agents, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "org" / ("base-v1" if "@" in text else "base")
    shutil.copytree(agents / "base", folder)
    before = (folder / "config.json").read_bytes()
    ran = run("probe", "--base", text, "--agent", f"code={agents}/code", "--json", f"{folder}/config.json")
    assert ran.code == 2
    assert "would be replaced" in ran.err
    assert (folder / "config.json").read_bytes() == before


def test_a_survey_beside_the_sources_may_be_written_twice(run, sources, tmp_path):
    for _ in range(2):
        assert run("probe", *sources, "--json", f"{tmp_path}/s.json").code == 0


@pytest.mark.parametrize("wrong", ["base", "agent", "out", "setting"])
def test_on_a_new_machine_a_mistake_does_not_wait_for_the_compiler(wrong, agents, tmp_path):
    """Nothing is in the compiler's cache then."""
    out = "base/out" if wrong == "out" else "out"
    words = ["merge", "--base", f"{agents}/{'bsae' if wrong == 'base' else 'base'}", "--out", f"{agents}/{out}"]
    words += ["--agent", f"code={agents}/{'cdoe' if wrong == 'agent' else 'code'}"]
    words += ["--vocab", "unoin"] if wrong == "setting" else []
    process = started(words, env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)})
    assert "Error: " in process.communicate()[1]
    assert process.returncode == 2
    assert [path for path in tmp_path.rglob("*") if path.suffix == ".nbc"] == []
