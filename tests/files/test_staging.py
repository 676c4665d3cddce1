"""OUT appears whole or not at all, and an interrupted swap is put right."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge.errors import OutputError
from agentmerge.files import staging as module
from agentmerge.files.aside import Aside
from agentmerge.files.staging import Staging, allocated
from tests.files.staged import NEW, ORDER, content, filled

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("unsynced")


class Killed(BaseException):
    """Stands for kill -9: nothing after it runs."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("old")
    return out


def test_the_folder_grows_beside_out_under_a_hidden_name(tmp_path: Path) -> None:
    staging = filled(tmp_path / "out")
    assert staging.folder == tmp_path / ".out.agentmerge"
    assert not (tmp_path / "out").exists()


def test_publish_gives_out_the_named_entries_and_nothing_else(tmp_path: Path) -> None:
    filled(tmp_path / "out").publish(ORDER)
    assert content(tmp_path / "out") == NEW
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_empty_out_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".DS_Store").write_text("x")
    filled(tmp_path / "out").publish(ORDER)
    assert content(tmp_path / "out") == NEW
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_parents_of_out_are_made(tmp_path: Path) -> None:
    filled(tmp_path / "a" / "b" / "out").publish(ORDER)
    assert content(tmp_path / "a" / "b" / "out") == NEW


def test_a_link_to_a_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    filled(tmp_path / "out").publish(ORDER)
    assert content(tmp_path / "real") == NEW
    assert (tmp_path / "out").is_symlink()


def test_a_second_run_finds_what_the_first_one_left(tmp_path: Path) -> None:
    assert Staging(tmp_path / "out").create()
    assert not Staging(tmp_path / "out").create()


@pytest.mark.parametrize("name", ["config.json", "a file of mine", ".hidden"])
def test_a_folder_with_something_in_it_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(OutputError, match=f"the folder is not empty .{name}.*--overwrite"):
        Staging(tmp_path / "out")
    assert content(tmp_path / "out") == {name: b"mine"}


def test_a_file_is_refused_even_with_overwrite(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match="is a file, expected a new or empty folder"):
            Staging(tmp_path / "out", overwrite=overwrite)


def test_overwrite_replaces_the_folder_whole(old: Path, tmp_path: Path) -> None:
    staging = filled(old, overwrite=True)
    assert content(old) == {"config.json": b"old"}
    staging.publish(ORDER)
    assert content(old) == NEW
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_no_space_is_told_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage: Any = shutil.disk_usage(tmp_path)._replace(free=99)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage)
    staging = Staging(tmp_path / "out")
    staging.create()
    staging.check_space(99)
    with pytest.raises(OutputError, match="100 bytes are needed on this disk, 99 are free"):
        staging.check_space(100)


# kills


def killed_at(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Let the process die at the n-th of the calls that change a folder."""
    count = [0]
    for owner, name in ((module.shutil, "rmtree"), *((Path, n) for n in ("rename", "unlink", "touch", "replace"))):
        original = getattr(owner, name)

        def counted(*arguments: Any, original: Any = original, **options: Any) -> Any:
            count[0] += 1
            if count[0] == call:
                raise Killed
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("call", range(1, 9))
def test_a_swap_killed_anywhere_leaves_the_old_folder_or_the_new_one(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    staging = filled(old, overwrite=True)
    with monkeypatch.context() as patch:
        killed_at(patch, call)
        with suppress(Killed):
            staging.publish(ORDER)
    Staging(old, overwrite=True)  # the next start
    assert content(old) in ({"config.json": b"old"}, NEW)
    filled(old, overwrite=True).publish(ORDER)
    assert content(old) == NEW
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("call", range(1, 9))
def test_a_first_publish_killed_anywhere_shows_nothing_or_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    staging = filled(tmp_path / "out")
    with monkeypatch.context() as patch:
        killed_at(patch, call)
        with suppress(Killed):
            staging.publish(ORDER)
    out = tmp_path / "out"
    assert not out.exists() or content(out) == NEW


def killed_between_its_two_renames(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = filled(old, overwrite=True)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_rename_to_nothing", lambda *_: _die())
        patch.setattr(Aside, "undo", lambda self: None)  # a killed process undoes nothing
        with pytest.raises(Killed):
            staging.publish(ORDER)
    assert not old.exists()


def test_a_folder_moved_aside_comes_back_at_the_next_start(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_between_its_two_renames(old, monkeypatch)
    with pytest.raises(OutputError, match="not empty"):
        Staging(old)
    assert content(old) == {"config.json": b"old"}


def test_a_folder_left_aside_after_the_swap_is_removed(old: Path, tmp_path: Path) -> None:
    (tmp_path / ".out.agentmerge-old").mkdir()
    Staging(old, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_left_aside_comes_back_where_somebody_made_an_empty_one_since(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_between_its_two_renames(old, monkeypatch)
    old.mkdir()
    Staging(old, overwrite=True)
    assert content(old) == {"config.json": b"old"}


# a mount point can't be renamed


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Path]:
    out = tmp_path / "mount"
    out.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", out], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a tmpfs can't be mounted here: {error}")
    try:
        yield out
    finally:
        subprocess.run(["umount", out], check=True)


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the system calls a mount point."""
    out = (tmp_path / "pretended").resolve()
    out.mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == out)
    return out


def check_mounted(out: Path) -> None:
    staging = filled(out)
    assert staging.folder.parent == out
    staging.publish(ORDER)
    assert content(out) == NEW
    with pytest.raises(OutputError, match="is a mount point and not empty"):
        Staging(out, overwrite=True)


def test_in_a_mount_point_the_folder_grows_inside(mount: Path) -> None:
    check_mounted(mount)


def test_in_a_pretended_mount_point_the_folder_grows_inside(pretended: Path) -> None:
    check_mounted(pretended)


@pytest.mark.parametrize("call", range(1, 12))
def test_killed_anywhere_a_mount_point_has_no_config_before_it_is_whole(
    pretended: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    staging = filled(pretended)
    with monkeypatch.context() as patch:
        killed_at(patch, call)
        with suppress(Killed):
            staging.publish(ORDER)
    if (pretended / "config.json").exists():
        assert content(pretended).items() >= NEW.items()
    again = Staging(pretended) if staging.folder.exists() else None
    if again is not None:
        assert not again.create()
        filled(pretended).publish(ORDER)
    assert content(pretended) == NEW


def test_what_an_earlier_kill_moved_into_a_mount_point_never_stands_beside_other_work(
    pretended: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = filled(pretended)
    with monkeypatch.context() as patch:
        patch.setattr(module.Staging, "discard", lambda self: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            staging.publish(ORDER)
    assert (pretended / "config.json").exists()
    other = filled(pretended)
    (other.folder / "model.safetensors").write_bytes(b"other")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *_: _die())  # of the folder, after the link of the first file
        with pytest.raises(Killed):
            other.publish(ORDER)
    assert (pretended / "model.safetensors").read_bytes() == b"other"
    assert not (pretended / "config.json").exists()


def _die() -> None:
    raise Killed


def test_allocated_bytes_of_a_file_that_is_not_there_are_none(tmp_path: Path) -> None:
    assert allocated(tmp_path / "none") == 0
    (tmp_path / "some").write_bytes(bytes(9000))
    assert 0 < allocated(tmp_path / "some") <= 9000
