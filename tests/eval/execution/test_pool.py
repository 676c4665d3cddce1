"""Programs in child processes; the attacks are in tests/slow."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import agentmerge
from agentmerge.errors import EvalError
from agentmerge.eval.execution import children
from agentmerge.eval.execution.confine import hidden, within
from agentmerge.eval.execution.grade import same
from agentmerge.eval.execution.isolation import Isolation, isolation, needed
from agentmerge.eval.execution.pool import execute
from agentmerge.eval.execution.store import EXECUTIONS, Verdicts
from agentmerge.eval.execution.trial import Limits, Trial, Verdict

LIMITS = Limits()
TRIALS = {
    "passed": Trial("print(int(input()) * 2)", "3\n", "6", executor="script"),
    "wrong": Trial("print(int(input()) * 3)", "3\n", "6", executor="script"),
    "error": Trial("def (", "", "", executor="script"),
    "killed": Trial("import os\nos._exit(0)", "", "", executor="script"),
}


def test_without_leave_no_program_is_run(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    trial = Trial(f"open({str(touched)!r}, 'w')", "", "", executor="script")
    with pytest.raises(EvalError, match="add --allow-code-execution"):
        execute([trial], LIMITS, allowed=False)
    assert not touched.exists()


def test_every_program_gets_its_verdict_and_a_stored_one_is_not_run_again(tmp_path: Path) -> None:
    environment, folder = dict(os.environ), os.getcwd()  # noqa: PTH109
    with Verdicts(tmp_path) as stored:
        done = execute(TRIALS.values(), LIMITS, allowed=True, known=stored.known, done=stored.add, children=1)
        stored.tell(done.facts)
    assert done.verdicts == {trial.key(LIMITS): verdict for verdict, trial in TRIALS.items()}
    assert done.facts["isolation"] == isolation().kind
    assert (dict(os.environ), os.getcwd()) == (environment, folder)  # noqa: PTH109
    with Verdicts(tmp_path) as stored:
        assert stored.facts == done.facts
        again = execute(TRIALS.values(), LIMITS, allowed=False, known=stored.known)
    assert (again.verdicts, again.facts) == (done.verdicts, {}), "nothing had to be run, so no leave is needed"


def test_verdicts_survive_a_kill_and_a_torn_line_is_run_again(tmp_path: Path) -> None:
    with Verdicts(tmp_path) as stored:
        stored.add("a", "passed")
        stored.add("b", "wrong")
    path = tmp_path / EXECUTIONS
    path.write_bytes(path.read_bytes()[:-3])
    with Verdicts(tmp_path) as stored:
        assert stored.known == {"a": "passed"}


def test_a_child_that_never_answers_is_ended_and_its_program_counts_as_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    child = children.Child(isolation("limits"), LIMITS, ["script"], 0)
    started: list[int] = []
    monkeypatch.setattr(child, "_start", lambda: started.append(1))
    assert child.ask(TRIALS["passed"]) == "killed"
    assert len(started) == 2, "another child had its chance"


def test_what_an_error_stops_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(key: str, verdict: Verdict) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(children.Child, "check", lambda self: None)
    monkeypatch.setattr(children.Child, "ask", lambda self, trial: "passed")
    with pytest.raises(OSError, match="no space left"):
        execute(TRIALS.values(), LIMITS, allowed=True, done=broken)


def test_a_key_is_all_that_a_verdict_depends_on() -> None:
    trial = TRIALS["passed"]
    others = [
        Trial("print(6)", trial.stdin, trial.expected, executor="script"),
        Trial(trial.code, "4\n", trial.expected, executor="script"),
        Trial(trial.code, trial.stdin, "8", executor="script"),
        Trial(trial.code, trial.stdin, trial.expected, 2.0, "script"),
        Trial(trial.code, trial.stdin, trial.expected),
        Trial(trial.code, trial.stdin, trial.expected, executor="script", comparator="cure"),
    ]
    keys = {trial.key(LIMITS), trial.key(Limits(memory_mb=64)), *(other.key(LIMITS) for other in others)}
    assert len(keys) == 8


@pytest.mark.parametrize(
    ("printed", "expected", "lcb", "cure"),
    [
        ("1 2\n3\n", "1 2\n3", True, True),
        ("1  2\n3", "1 2\n3", True, True),
        ("a  b", "a b", False, True),
        ("1 2 3", "1 2\n3", False, True),
        ("1.0", "1", True, False),
        ("1e1 2", "10 2.0", True, False),
        ("  a \n", "a", True, True),
        ("\n\na\n", "a", True, True),
        ("a\n\nb", "a\nb", False, True),
        ("", "\n", True, True),
        ("a", "", False, False),
        ("nan", "nan", True, True),
    ],
)
def test_outputs_are_the_same_as_the_comparator_says(printed: str, expected: str, lcb: bool, cure: bool) -> None:
    assert (same(printed, expected, "lcb"), same(printed, expected, "cure")) == (lcb, cure)


def test_an_isolation_that_does_not_work_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda command: None)
    isolation.cache_clear()
    try:
        assert (isolation().kind, isolation().network) == ("limits", "open")
        with pytest.raises(EvalError, match="isolation 'bubblewrap' does not work here"):
            isolation("bubblewrap")
    finally:
        isolation.cache_clear()


def test_what_cannot_seal_its_files_comes_after_what_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda command: f"/usr/bin/{command}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    works = {("namespaces", False), ("bubblewrap", False), ("limits", False)}
    monkeypatch.setattr("agentmerge.eval.execution.isolation._works", lambda one: (one.kind, one.sealed) in works)
    isolation.cache_clear()
    try:
        assert isolation().kind == "bubblewrap"
        with pytest.raises(EvalError, match="isolation 'namespaces' does not work here"):
            isolation("namespaces")
        works.remove(("bubblewrap", False))
        isolation.cache_clear()
        assert (isolation().kind, isolation().sealed, isolation().network) == ("namespaces", False, "none")
    finally:
        isolation.cache_clear()


def test_a_child_that_cannot_seal_its_files_runs_nothing() -> None:
    """Without a mount namespace it can't: of limits nobody expects it, of this one it was said."""
    within = Isolation("limits", sealed=True)
    child = children.Child(within, LIMITS, ["script"], 0)
    try:
        with pytest.raises(EvalError, match="no child process can be started: its files can't be sealed"):
            child.ask(TRIALS["passed"])
    finally:
        child.close()


def test_what_is_needed_stays_visible_and_what_hides_it_is_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, data, linked = tmp_path / "home", tmp_path / "data", tmp_path / "home" / "venv"
    (data / "venv").mkdir(parents=True)
    home.mkdir()
    linked.symlink_to(data / "venv")
    monkeypatch.setattr("agentmerge.eval.execution.confine.HIDDEN", (str(home), str(data)))
    monkeypatch.setenv("HOME", str(home))
    assert hidden([str(linked)]) == [str(data), str(home)]
    assert within([str(linked), "/usr", str(linked / "lib")], hidden([])) == [str(data / "venv"), str(linked)]
    assert hidden([str(home), str(tmp_path)]) == [str(home)], "a home is covered in any case"
    assert hidden([str(data)]) == [str(home)], "what is needed as a whole can't be covered"


def test_the_working_folder_is_not_shown_and_a_home_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, work, own = tmp_path / "home", tmp_path / "home" / "work", tmp_path / "home" / "clone"
    (own / "agentmerge").mkdir(parents=True)
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    monkeypatch.setattr("sys.path", [str(work), str(home), str(tmp_path), *sys.path])
    assert not {str(work), str(home), str(tmp_path)} & set(needed())
    assert str(Path(agentmerge.__file__).parent) in needed()
    monkeypatch.chdir(own)
    monkeypatch.setattr("sys.path", [str(own), *sys.path])
    assert str(own) not in needed()
    monkeypatch.setattr("agentmerge.__file__", str(own / "agentmerge" / "__init__.py"))
    assert str(own) in needed()
