"""What comes to OUT while a run is at work is never replaced, moved or removed; the work is kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge.errors import OutputError
from agentmerge.files import staging as module
from agentmerge.files.aside import Aside
from agentmerge.files.contents import Contents
from agentmerge.files.staging import Staging
from tests.files.staged import NEW, ORDER, content, filled

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("unsynced")


def folder_with_notes(out: Path) -> None:
    out.mkdir()
    (out / "notes.txt").write_text("mine")


def link_to_elsewhere(out: Path) -> None:
    (out.parent / "elsewhere").mkdir()
    out.symlink_to("elsewhere")


CAME: dict[str, Callable[[Path], Any]] = {
    "a folder with notes": folder_with_notes,
    "an empty folder": Path.mkdir,
    "a file": lambda out: out.write_text("mine"),
    "a link": link_to_elsewhere,
    "a link to nothing": lambda out: out.symlink_to("nothing"),
}


@pytest.mark.parametrize("what", CAME)
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_appears_at_out_stays_and_so_does_the_work(what: str, *, overwrite: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    staging = filled(out, overwrite=overwrite)
    CAME[what](out)
    before = Contents.of(out), content(tmp_path)
    with pytest.raises(OutputError, match=f"^{out}: something came there .*, and is not replaced.*what is finished is"):
        staging.publish(ORDER)
    assert (Contents.of(out), content(tmp_path)) == before
    assert (staging.folder / ".journal.jsonl").exists()


@pytest.mark.parametrize("name", ["notes.txt", "deep/notes.txt", "config.json", ".hidden"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_what_appears_in_an_out_that_was_there_stays(name: str, *, overwrite: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    if overwrite:
        (out / "old.txt").write_text("old")
    staging = filled(out, overwrite=overwrite)
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("mine")
    before = content(tmp_path)
    with pytest.raises(OutputError, match=r"something came there"):
        staging.publish(ORDER)
    assert content(tmp_path) == before
    (out / name).rename(tmp_path / "moved away")
    if "/" in name:
        (out / name).parent.rmdir()
    staging.publish(ORDER)
    assert content(out) == NEW


def changed(path: Path) -> None:
    path.write_text("other")


def replaced(path: Path) -> None:
    path.with_name("x").write_text("old")
    os.utime(path.with_name("x"), ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    path.with_name("x").replace(path)


@pytest.mark.parametrize("change", [changed, replaced])
def test_overwrite_does_not_replace_a_file_that_changed_meanwhile(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("old")
    staging = filled(out, overwrite=True)
    change(out / "notes.txt")
    before = content(out)
    with pytest.raises(OutputError, match=r"something came there while this run was at work \(notes.txt\)"):
        staging.publish(ORDER)
    assert content(out) == before


def test_what_was_there_and_is_gone_is_no_trouble(tmp_path: Path) -> None:
    out = tmp_path / "out"
    folder_with_notes(out)
    staging = filled(out, overwrite=True)
    (out / "notes.txt").unlink()
    staging.publish(ORDER)
    assert content(out) == NEW


def test_what_comes_in_the_last_moment_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at OUT and its rename."""
    out = tmp_path / "out"
    folder_with_notes(out)
    staging, take = filled(out, overwrite=True), Aside.take

    def late(aside: Aside) -> Contents:
        (out / "late.txt").write_text("mine")
        return take(aside)

    monkeypatch.setattr(Aside, "take", late)
    with pytest.raises(OutputError, match=r"something came there while this run was at work \(late.txt\)"):
        staging.publish(ORDER)
    assert content(out) == {"notes.txt": b"mine", "late.txt": b"mine"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.agentmerge", "out"]


def test_what_comes_after_that_stays_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose folder it was still writes into the old one, which has another name by now."""
    out = tmp_path / "out"
    folder_with_notes(out)
    staging, rename = filled(out, overwrite=True), module._rename_to_nothing

    def late(path: Path, name: Path) -> None:
        (tmp_path / ".out.agentmerge-old" / "old" / "late.txt").write_text("mine")
        rename(path, name)

    with monkeypatch.context() as patch:
        patch.setattr(module, "_rename_to_nothing", late)
        staging.publish(ORDER)
    assert content(out) == NEW
    left = tmp_path / ".out.agentmerge-old" / "old"
    assert content(left) == {"late.txt": b"mine"}
    with pytest.raises(OutputError, match=f"an interrupted run left in {left} what was there before"):
        Staging(out, overwrite=True)
    left.rename(tmp_path / "looked at")
    filled(out, overwrite=True).publish(ORDER)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["looked at", "out"]


def test_another_out_made_between_two_kills_is_not_taken_for_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    folder_with_notes(out)
    staging = filled(out, overwrite=True)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_rename_to_nothing", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr(Aside, "undo", lambda self: None)
        with pytest.raises(KeyboardInterrupt):
            staging.publish(ORDER)
    out.mkdir()
    (out / "other.txt").write_text("mine, too")
    before = content(tmp_path)
    with pytest.raises(OutputError, match="an interrupted run left in"):
        Staging(out, overwrite=True)
    assert content(tmp_path) == before


# folders of the names that a run needs


@pytest.mark.parametrize("name", [".out.agentmerge-old", ".out.agentmerge"])
@pytest.mark.parametrize("there", [False, True])
def test_somebodys_folder_of_our_names_is_left_alone(name: str, *, there: bool, tmp_path: Path) -> None:
    folder_with_notes(tmp_path / name)
    if there:
        folder_with_notes(tmp_path / "out")
    before = content(tmp_path)
    with pytest.raises(OutputError, match=f"{tmp_path / name} is in the way"):
        Staging(tmp_path / "out", overwrite=True)
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", [".out.agentmerge-old", ".out.agentmerge"])
def test_a_link_of_our_names_is_not_followed(name: str, tmp_path: Path) -> None:
    folder_with_notes(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / ".journal.jsonl").write_text("{}")
    (tmp_path / name).symlink_to("elsewhere")
    with pytest.raises(OutputError, match="is in the way"):
        Staging(tmp_path / "out", overwrite=True)
    assert len(content(tmp_path / "elsewhere")) == 2


# mount points


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    out = (tmp_path / "pretended").resolve()
    out.mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == out)
    return out


@pytest.mark.parametrize("name", ["notes.txt", "config.json", "model.safetensors", "tokenizer/mine.txt"])
def test_what_appears_in_a_mount_point_stays(name: str, pretended: Path) -> None:
    staging = filled(pretended)
    (pretended / name).parent.mkdir(exist_ok=True)
    (pretended / name).write_text("mine")
    before = content(pretended)
    with pytest.raises(OutputError, match="something came there"):
        staging.publish(ORDER)
    assert content(pretended) == before
    with pytest.raises(OutputError, match="is a mount point and not empty"):
        Staging(pretended)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer"])
def test_what_appears_in_a_mount_point_in_the_last_moment_is_not_replaced(
    name: str, pretended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = filled(pretended)
    clear = staging.clear

    def late(keep: Any) -> None:
        clear(keep)
        (pretended / name).write_text("mine")

    monkeypatch.setattr(staging, "clear", late)
    with pytest.raises(OutputError, match="something came there"):
        staging.publish(ORDER)
    assert (pretended / name).read_text() == "mine"


def test_what_a_kill_left_in_a_mount_point_and_somebody_changed_since_is_his(
    pretended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = filled(pretended)
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "discard", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            staging.publish(ORDER)
    (pretended / "config.json").write_text("mine")
    with pytest.raises(OutputError, match=r"not empty \(config.json\)"):
        Staging(pretended)
    assert (pretended / "config.json").read_text() == "mine"


@pytest.mark.parametrize("links", [True, False])
def test_files_are_moved_with_and_without_hard_links(
    *, links: bool, pretended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", lambda *_: (_ for _ in ()).throw(PermissionError(1, "no links here")))
    filled(pretended).publish(ORDER)
    assert content(pretended) == NEW
    assert all(path.stat().st_nlink == 1 for path in pretended.iterdir() if path.is_file())
