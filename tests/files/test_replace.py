"""A file gets its new content all at once, or keeps what it had."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from agentmerge.errors import OutputError
from agentmerge.files import staging
from agentmerge.files.staging import replace_file

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "survey.json"
    path.write_bytes(b"old")
    return path


def test_a_new_file_is_written_with_the_usual_permissions(tmp_path: Path) -> None:
    replace_file(tmp_path / "new", b"data")
    (tmp_path / "usual").write_bytes(b"data")
    assert (tmp_path / "new").read_bytes() == b"data"
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode
    assert {path.name for path in tmp_path.iterdir()} == {"new", "usual"}


def test_an_old_file_is_replaced_and_keeps_its_permissions(old: Path) -> None:
    old.chmod(0o640)
    replace_file(old, b"new")
    assert (old.read_bytes(), old.stat().st_mode & 0o777) == (b"new", 0o640)


@pytest.mark.parametrize("step", ["write_file", "sync_data"])
def test_what_was_there_survives_a_failed_write(old: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(staging, step, full)
    with pytest.raises(OutputError) as caught:
        replace_file(old, b"new")
    assert str(caught.value) == f"{old}: can't be written: No space left on device. Choose another place."
    assert caught.value.problems[0].where.path == str(old)
    assert old.read_bytes() == b"old"
    assert [path.name for path in old.parent.iterdir()] == [old.name]


def test_what_was_there_survives_a_kill(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        replace_file(old, b"new")
    assert old.read_bytes() == b"old"


@pytest.mark.parametrize("links", [True, False])
def test_a_new_file_replaces_none(*, links: bool, old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", lambda *_: (_ for _ in ()).throw(PermissionError(1, "no links here")))
    with pytest.raises(OutputError, match=f"^{old}: exists already"):
        replace_file(old, b"new", new=True)
    assert old.read_bytes() == b"old"
    replace_file(old.with_name("other"), b"new", new=True)
    assert old.with_name("other").read_bytes() == b"new"
    assert {path.name for path in old.parent.iterdir()} == {old.name, "other"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_an_old_file_keeps_its_owner_and_group(old: Path) -> None:
    os.chown(old, 12345, 23456)
    replace_file(old, b"new")
    assert (old.stat().st_uid, old.stat().st_gid) == (12345, 23456)


def test_a_link_stays_a_link(old: Path) -> None:
    link = old.with_name("link")
    link.symlink_to(old.name)
    replace_file(link, b"new")
    assert link.is_symlink()
    assert old.read_bytes() == b"new"


def test_what_is_no_regular_file_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    replace_file(pipe, b"data")
    reader.join()
    assert read == [b"data"]
    assert pipe.is_fifo()


def test_a_place_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="can't be written: No such file or directory"):
        replace_file(tmp_path / "no" / "file", b"")
    with pytest.raises(OutputError, match="can't be written: Is a directory"):
        replace_file(tmp_path, b"")
