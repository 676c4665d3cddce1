"""Programs that attack: each gets its verdict, and who started it is unharmed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentmerge.errors import EvalError
from agentmerge.eval.execution.isolation import Isolation, isolation
from agentmerge.eval.execution.pool import execute
from agentmerge.eval.execution.trial import Comparator, Executor, Limits, Trial, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
LIMITS = Limits(memory_mb=256, processes=16, file_mb=4)

ATTACKS: dict[str, tuple[str, str, set[Verdict]]] = {
    "200 KB": ("print('x' * 200_000)", "x" * 200_000, {"passed"}),
    "an endless loop": ("while True: pass", "", {"timeout"}),
    "an endless loop that catches everything": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "",
        {"timeout"},
    ),
    "endless output": ("while True: print('x' * 2**20)", "", {"error", "killed", "timeout"}),
    "a fork bomb": (
        "import posix\nwhile True:\n    try: posix.fork()\n    except OSError: pass",
        "",
        {"timeout", "killed"},
    ),
    "bounded forks": (
        "import posix, time\nforked = 0\ntry:\n    while forked < 500:\n        if not posix.fork(): time.sleep(30)\n"
        "        forked += 1\nexcept OSError: pass\nprint(1 < forked < 16)",
        "True",
        {"passed"},
    ),
    "threads": (
        "import threading, time\nstarted = 0\ntry:\n    while started < 500:\n"
        "        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()\n        started += 1\n"
        "except RuntimeError: pass\nprint(1 < started < 16)",
        "True",
        {"passed"},
    ),
    "a memory bomb": ("x = 'x' * 2**30", "", {"error"}),
    "bounded memory": (
        "held = []\ntry:\n    while len(held) < 100: held.append(bytes(2**24))\n"
        "except MemoryError: pass\ncount = len(held)\nheld = []\nprint(count < 20)",
        "True",
        {"passed"},
    ),
    "a large file": (
        "import posix, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "file, written = posix.open('a', posix.O_WRONLY | posix.O_CREAT), 0\n"
        "try:\n    while written < 2**26: written += posix.write(file, bytes(2**20))\nexcept OSError: pass\n"
        "print(written <= 2**22)",
        "True",
        {"passed"},
    ),
    "a folder that deletes itself": (
        "import posix\nopened = posix.open('a', posix.O_CREAT)\nfor name in posix.listdir('.'): posix.unlink(name)\n"
        "try: posix.rmdir(posix.getcwd())\nexcept OSError: pass\nprint(len(posix.listdir('.')))",
        "0",
        {"passed"},
    ),
    "sys.exit": ("import sys\nprint(sys.stdin.read().strip())\nsys.exit(3)", "read", {"passed"}),
    "os._exit": ("import os\nos._exit(0)", "", {"killed"}),
    "a signal": ("import posix, signal\nposix.kill(posix.getpid(), signal.SIGKILL)", "", {"killed"}),
    "its forebears": (
        "import posix\nfor process in (1, posix.getppid()):\n"
        "    try: posix.kill(process, 9)\n    except OSError: pass\nprint(1)",
        "1",
        {"passed", "killed"},
    ),
    "an empty place": (
        "import posix\nprint(posix.listdir('.'), sorted(name for name in posix.environ if b'SECRET' in name))",
        "[] []",
        {"passed"},
    ),
    "no privileges": (
        "import posix\ntry:\n    posix.setuid(0)\n    posix.mkdir('/agentmerge-was-here')\n    print('root')\n"
        "except OSError: print('none')",
        "none",
        {"passed"},
    ),
    "no Python": ("def (", "", {"error"}),
    "a right one among them": ("print('right')", "right", {"passed"}),
}


@pytest.fixture(params=["lcb", "script"])
def executor(request: pytest.FixtureRequest) -> Executor:
    """How programs are run; livecodebench is installed apart, see docs/evaluation.md."""
    if request.param == "lcb":
        pytest.importorskip("livecodebench", reason="pip install --no-deps nvidia-livecodebench==26.3")
    return request.param  # type: ignore[no-any-return]


def run(trials: dict[str, Trial], within: Isolation | None = None, limits: Limits = LIMITS) -> dict[str, Verdict]:
    # Where a user's processes are counted together, one program's bomb would be another one's lack of threads.
    children = 1 if within and within.kind == "limits" else 2
    done = execute(trials.values(), limits, allowed=True, within=within, children=children)
    return {name: done.verdicts[trial.key(limits)] for name, trial in trials.items()}


def is_running(process: int) -> bool:
    """Whether it is there, and not only not yet collected."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def descendants(of: int | None = None) -> set[int]:
    """Processes that came of one, of this one where nothing is said."""
    first = os.getpid() if of is None else of
    parents: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {first}
    while more := {process for process, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {first}


@pytest.mark.parametrize("kind", ["namespaces", "bubblewrap", "limits"])
def test_attacks_get_their_verdict_and_the_parent_is_unharmed(
    executor: Executor, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        within = isolation(kind)  # type: ignore[arg-type]
    except EvalError as error:
        pytest.skip(str(error))
    if kind == "limits" and os.geteuid() == 0 and not _readable(sys.base_prefix):
        pytest.skip("programs get another user than root, who can't read this interpreter")
    monkeypatch.setenv("SECRET_TOKEN", "told to nobody")
    (tmp_path / "kept").write_text("kept")
    before, environment, folder = descendants(), dict(os.environ), Path.cwd()
    trials = {
        name: Trial(code, "read\n", expected, 1.0, executor, "cure") for name, (code, expected, _) in ATTACKS.items()
    }
    found = run(trials, within)
    assert {name: verdict for name, verdict in found.items() if verdict not in ATTACKS[name][2]} == {}
    assert descendants() == before
    assert (dict(os.environ), Path.cwd(), (tmp_path / "kept").read_text()) == (environment, folder, "kept")
    assert not Path("/agentmerge-was-here").exists()


def _readable(folder: str) -> bool:
    """Whether everybody may enter a folder."""
    return all(place.stat().st_mode & 0o001 for place in (Path(folder), *Path(folder).parents))


@pytest.fixture
def listening() -> Iterator[int]:
    """A port of this machine that answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_network_namespace_has_no_network_and_other_folders_are_read_only(
    executor: Executor, listening: int, tmp_path: Path
) -> None:
    if isolation().kind == "limits":
        pytest.skip("this system keeps programs in by limits alone")
    connect = f"""
import socket
try:
    socket.create_connection(("127.0.0.1", {listening}), timeout=1)
    print("open")
except OSError:
    print("closed")
"""
    tmp_path.chmod(0o777)
    write = f"""
import posix
try:
    posix.open({str(tmp_path / "written")!r}, posix.O_WRONLY | posix.O_CREAT)
    print("written")
except OSError:
    print("not")
"""
    trials = {
        "network": Trial(connect, "", "closed", 2.0, executor),
        "files": Trial(write, "", "not", 2.0, executor),
    }
    assert run(trials) == {"network": "passed", "files": "passed"}
    assert not (tmp_path / "written").exists()


def test_a_process_that_is_killed_leaves_no_programs_behind(tmp_path: Path) -> None:
    script = f"""
from agentmerge.eval.execution.pool import execute
from agentmerge.eval.execution.store import Verdicts
from agentmerge.eval.execution.trial import Limits, Trial
from pathlib import Path
trials = [Trial(f"print({{n}})" if n < 20 else "while True: pass", "", str(n), 60.0, "script") for n in range(40)]
with Verdicts(Path({str(tmp_path)!r})) as stored:
    execute(trials, Limits(), allowed=True, known=stored.known, done=stored.add, children=1)
"""
    process = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    stored = tmp_path / "executions.jsonl"
    try:
        while process.poll() is None and (not stored.exists() or len(stored.read_bytes().splitlines()) < 20):
            os.sched_yield()
        children = descendants(process.pid)
        assert children
    finally:
        process.kill()
        process.wait()
    for _ in range(600):  # however busy the machine is
        if not any(map(is_running, children)):
            break
        time.sleep(0.1)
    assert not any(map(is_running, children))
    assert len(stored.read_bytes().splitlines()) == 20, "they are not run again"


OUTPUTS = [
    "",
    "\n",
    "1",
    "1.0",
    "1e0",
    " 1 ",
    "1 2",
    "1  2",
    "1\n2",
    "1\n\n2",
    "a b",
    "a  b",
    "a\nb",
    "nan",
    "inf",
    "1 a",
    "1.0 a",
]


@pytest.mark.parametrize("comparator", ["lcb", "cure"])
def test_both_executors_take_the_same_outputs_for_equal(comparator: Comparator) -> None:
    pytest.importorskip("livecodebench", reason="pip install --no-deps nvidia-livecodebench==26.3")
    pairs = [(printed, expected) for printed in OUTPUTS for expected in OUTPUTS[::2]]
    trials = {
        f"{executor} {printed!r} {expected!r}": Trial(f"print({printed!r})", "", expected, 5.0, executor, comparator)
        for executor in ("lcb", "script")
        for printed, expected in pairs
    }
    found = run(trials)
    of_lcb, of_script = (
        {pair: found[f"{name} {pair[0]!r} {pair[1]!r}"] for pair in pairs} for name in ("lcb", "script")
    )
    assert of_lcb == of_script
    assert {*of_lcb.values()} == {"passed", "wrong"}


def test_livecodebench_makes_a_function_of_a_program_so_global_fails_there(executor: Executor) -> None:
    code = "count = 0\ndef add():\n    global count\n    count += 1\nadd()\nprint(count)"
    trials = {"global": Trial(code, "", "1", 2.0, executor)}
    assert run(trials) == {"global": "passed" if executor == "script" else "error"}
