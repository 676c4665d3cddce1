"""Tables fit the terminal: no number is ever cut, and nothing but text is printed."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agentmerge.cli.console import Bar, Lines
from agentmerge.cli.table import Column, Prose, Table
from agentmerge.cli.tables import overlap_table, rounding_table
from agentmerge.record import AgentOverlap, AgentRounding, SurveySummary

if TYPE_CHECKING:
    from pathlib import Path

WIDTHS = 40, 60, 80, 100, 200
NAMES = {
    "one": ["code"],
    "three": ["code", "memory", "tool"],
    "eight": [f"agent_{i}" for i in range(8)],
    "sixty-four": [f"{'a-name-as-long-as-they-may-be-':x<58}{i:06}" for i in range(64)],
}


def survey(names: list[str]) -> SurveySummary:
    """Of a model of 7 billion elements, nearly all of which every agent changed."""
    agents = {
        name: AgentOverlap(
            changed=7_004_405_123 + t,
            density=0.9198765,
            unique=1_528_278_456 + t,
            shared=5_476_126_667,
            overlap_unique_ratio=0.901276,
            scale=1.0901276,
            changed_by_exactly=[1_528_278_456 + t] * len(names),
        )
        for t, name in enumerate(names)
    }
    return SurveySummary(elements=7_615_616_512, threshold=1e-5, agents=agents)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_every_number_is_whole_at_any_width(width: int, names: list[str]) -> None:
    lines = overlap_table(survey(names)).lines(width)
    words = {word for line in lines for word in line.split()}
    for t in range(len(names)):
        assert {f"{7_004_405_123 + t:,}", f"{1_528_278_456 + t:,}", "5,476,126,667", "91.99%", "0.9013"} <= words
    assert "…" not in "".join(lines)
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
def test_no_line_is_longer_than_the_terminal_but_for_a_longer_word(width: int, names: list[str]) -> None:
    shares = AgentRounding(changed_lost=0.034, below_threshold=0.0613, rescale_survived=0.999)
    tables = overlap_table(survey(names)), rounding_table(dict.fromkeys(names, shares))
    lines = [line for table in tables for line in table.lines(width)]
    assert [line for line in lines if len(line) > width and line not in names] == []


def test_what_is_left_out_for_its_width_is_named_below() -> None:
    assert "changed by exactly" not in overlap_table(survey(NAMES["eight"])).lines(80)[-3]
    assert "but in --json: changed by exactly 1, 2, ..." in " ".join(
        overlap_table(survey(NAMES["eight"])).lines(80)[-2:]
    )
    assert "--json" not in "".join(overlap_table(survey(NAMES["three"])).lines(200))


def test_a_narrow_table_is_stacked_under_the_names_of_its_rows() -> None:
    lines = overlap_table(survey(["code"])).lines(40)
    below = lines.index("code") + 1
    assert lines[below : below + 2] == ["  density  91.99%", "  changed  7,004,405,123"]


def test_columns_line_up_numbers_to_the_right() -> None:
    table = Table("", [Column("agent", "name"), Column("changed")])
    table.add("code", "5")
    table.add("memory", "1,004")
    assert table.lines(80) == ["agent   changed", "------  -------", "code          5", "memory    1,004"]


def test_sentences_are_wrapped_between_words_beside_numbers_that_are_not() -> None:
    table = Table("", [Column("n"), Column("about", "text")])
    table.add("1,000,000", "a sentence that is too long for one line")
    lines = table.lines(40)
    assert max(map(len, lines)) <= 40
    assert (
        " ".join(" ".join(line.split()) for line in lines[2:]) == "1,000,000 a sentence that is too long for one line"
    )


def test_prose_is_filled_and_commands_stay_as_they_are() -> None:
    lines = Prose("one two three four\nfive six\n\n  agentmerge merge --base BASE --out somewhere far\n").lines(20)
    assert lines == ["one two three four", "five six", "", "  agentmerge merge --base BASE --out somewhere far"]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_all_of_a_record_fits(run, sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    run("merge", *sources, "--out", str(tmp_path / "out"), "--report", "--quiet")
    for command in (
        ["inspect", str(tmp_path / "out")],
        ["probe", *sources, "--full"],
        ["methods"],
        ["check", *sources],
    ):
        ran = run(*command)
        assert (ran.code, "…" in ran.out) == (0, False)
        tables = [line for line in ran.out.splitlines() if re.search(r"  \d", line) and not line.startswith("Method")]
        assert [line for line in tables if len(line) > width] == []


def test_a_pipe_gets_plain_text(run, sources) -> None:
    out = run("probe", *sources).out
    assert re.search("[\u2500-\u257f\x1b]", out) is None
    assert all(line == line.rstrip() for line in out.splitlines())


# a real terminal


def in_terminal(*args: str, width: int = 80, **environment: str) -> str:
    """What `agentmerge ARGS` prints in a terminal of so many columns, stdout and stderr."""
    ours, theirs = pty.openpty()
    env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    code = f"import fcntl, struct, termios; fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('HHHH', 24, {width}, 0, 0))"
    code += "; from agentmerge.cli import main; main()"
    command = [sys.executable, "-c", code, *args]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, env={**env, "TERM": "xterm", **environment}) as child:
        os.close(theirs)
        parts = []
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:  # Linux's way to say that the other end is closed
            pass
        os.close(ours)
    assert child.returncode == 0
    return b"".join(parts).decode()


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_a_terminal_without_colours_gets_no_codes_at_all(sources, tmp_path: Path, environment: dict[str, str]) -> None:
    out = in_terminal("merge", *sources, "--out", str(tmp_path / "out"), **environment)
    assert "Merged code, tool" in out
    assert "\x1b" not in out


def test_a_terminal_of_sixty_columns_shows_every_number(sources) -> None:
    lines = in_terminal("probe", *sources, width=60).replace("\r", "").splitlines()
    shown = [line for line in lines if line.startswith(("code", "tool"))]
    assert len(shown) == 2
    assert all(len(line) <= 60 and "…" not in line for line in shown)


def test_progress_in_lines_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    now = iter([0.0, 0.0, 5.0, 20.0])
    monkeypatch.setattr("agentmerge.cli.console.monotonic", lambda: next(now))
    lines = Lines()
    lines.begin("fold", 4_000_000)
    lines.advance(1_000_000)
    lines.advance(1_000_000)
    assert capsys.readouterr().err == "fold: 50%, 2.0MB of 4.0MB, 100.0KB/s\n"


def test_a_pipe_gets_a_line_a_minute_whatever_the_phases(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    clock = [0.0]
    monkeypatch.setattr("agentmerge.cli.console.monotonic", lambda: clock[0])
    for quiet in (False, True):
        with Bar(quiet) as bar:
            for phase in ("fold", "map"):
                bar.begin(phase, 10_000_000)
                for _ in range(10):
                    clock[0] += 10
                    bar.advance(1_000_000)
        told = ["fold: 60%, 6.0MB of 10.0MB, 100.0KB/s", "map: 20%, 2.0MB of 10.0MB, 100.0KB/s"]
        told.append("map: 80%, 8.0MB of 10.0MB, 100.0KB/s")
        assert capsys.readouterr().err.splitlines() == ([] if quiet else told)
        clock[0] = 0.0


def test_work_of_less_than_a_minute_is_silent_in_a_pipe(capsys) -> None:
    with Bar() as bar:
        bar.begin("fold", 10)
        bar.advance(10)
    assert capsys.readouterr() == ("", "")
