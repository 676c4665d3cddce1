"""Nothing that a source reads, through any chain of links or mounts, is ever replaced, moved or removed."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge import check, merge, probe
from agentmerge.errors import OutputError
from agentmerge.testing import Sources, make_agents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("unsynced")
WEIGHTS = "model.safetensors"


@pytest.fixture
def linked(tmp_path: Path) -> Sources:
    """A base whose weights lie in real/ beside notes."""
    sources = make_agents(tmp_path / "in")
    real = tmp_path / "real"
    real.mkdir()
    (sources.base / WEIGHTS).rename(real / WEIGHTS)
    (sources.base / WEIGHTS).symlink_to(f"../../real/{WEIGHTS}")
    (real / "notes.txt").write_text("x")
    return sources


def state(folder: Path) -> dict[str, Any]:
    return {str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in folder.rglob("*")}


def refused(sources: Sources, out: Path, match: str = "lies in, or holds, the source of", **sections: Any) -> None:
    root = out.parent
    before = state(root)
    recipe = sources.recipe("ram", **sections)
    for overwrite in (True, False):
        with pytest.raises(OutputError, match=match):
            merge(recipe, out, overwrite=overwrite)
        findings = check(recipe, out, overwrite=overwrite).findings
        assert [finding.severity for finding in findings if str(out) in finding.found] == ["error"]
    assert state(root) == before


def test_the_folder_that_the_bases_weights_link_to(linked: Sources, tmp_path: Path) -> None:
    refused(linked, tmp_path / "real", f"real: lies in, or holds, the source of base .{tmp_path}/real/{WEIGHTS}")


@pytest.mark.parametrize("who", ["code", "tool"])
def test_the_folder_that_an_agents_weights_link_to(who: str, tiny: Sources, tmp_path: Path) -> None:
    folder = tiny.agents[who]
    folder.rename(tmp_path / "real")
    folder.symlink_to(tmp_path / "real")
    refused(tiny, tmp_path / "real", f"the source of agent '{who}'")


def test_a_folder_in_the_middle_of_a_chain_of_links(linked: Sources, tmp_path: Path) -> None:
    for name, leads in (("one", "../two/link"), ("two", f"../real/{WEIGHTS}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "link").symlink_to(leads)
    (linked.base / WEIGHTS).unlink()
    (linked.base / WEIGHTS).symlink_to("../../one/link")
    for name in ("one", "two", "real"):
        refused(linked, tmp_path / name)


def test_a_folder_that_holds_a_link_on_the_way_to_a_source(tiny: Sources, tmp_path: Path) -> None:
    (tmp_path / "way").mkdir()
    (tmp_path / "way" / "in").symlink_to(tiny.base.parent)
    through = Sources(tmp_path / "way" / "in" / "base", tiny.agents)
    refused(through, tmp_path / "way")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja", "code/modeling.py"])
def test_a_folder_that_a_side_file_links_to(name: str, tiny: Sources, tmp_path: Path) -> None:
    (tmp_path / "side").mkdir()
    target, link = tmp_path / "side" / "file", tiny.base / name
    link.parent.mkdir(exist_ok=True)
    target.write_bytes(link.read_bytes() if link.exists() else b"{}")
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    refused(tiny, tmp_path / "side")


def test_blobs_of_the_hub_cache(tiny: Sources, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tiny.base / WEIGHTS).rename(tmp_path / "blobs" / "abc")
    (tiny.base / WEIGHTS).symlink_to("../../blobs/abc")
    refused(tiny, tmp_path / "blobs")


def test_out_by_another_link_to_the_real_folder(linked: Sources, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to("real")
    refused(linked, tmp_path / "alias")


def test_a_folder_beside_the_real_one_and_one_inside_it_are_fine(linked: Sources, tmp_path: Path) -> None:
    before = state(tmp_path / "real")
    merge(linked.recipe("ram"), tmp_path / "real" / "out")
    merge(linked.recipe("ram"), tmp_path / "real2")
    assert state(tmp_path / "real").items() >= before.items()


@pytest.mark.parametrize("place", [".out.agentmerge", ".out.agentmerge-old"])
def test_a_source_under_a_name_that_a_run_needs(place: str, tiny: Sources, tmp_path: Path) -> None:
    tiny.base.rename(tmp_path / place)
    refused(Sources(tmp_path / place, tiny.agents), tmp_path / "out")


def test_another_hard_link_of_the_weights_may_go_and_the_source_keeps_its_own(tiny: Sources, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "backup.safetensors").hardlink_to(tiny.base / WEIGHTS)
    before = (tiny.base / WEIGHTS).read_bytes()
    merge(tiny.recipe("ram"), out, overwrite=True)
    assert (tiny.base / WEIGHTS).read_bytes() == before
    assert not (out / "backup.safetensors").exists()


# what is read beside the sources


def test_the_recipe_and_the_survey_in_an_out_that_is_replaced(tiny: Sources, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "recipe.yaml").write_text(json.dumps(tiny.recipe("ram")))
    with pytest.raises(OutputError, match=r"holds, the recipe .*recipe.yaml"):
        merge(out / "recipe.yaml", out, overwrite=True)
    probe(tiny.recipe("ram+")).save(out / "survey.json")
    with pytest.raises(OutputError, match=r"holds, the saved survey .*survey.json"):
        merge(tiny.recipe("ram+", run={"survey": str(out / "survey.json")}), out, overwrite=True)
    assert sorted(path.name for path in out.iterdir()) == ["recipe.yaml", "survey.json"]


# mounts


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[Callable[[Path, Path], None]]:
    """Bind a folder or file to another place, for as long as the test lasts."""
    places: list[Path] = []

    def bind(what: Path, place: Path) -> None:
        try:
            subprocess.run(["mount", "--bind", what, place], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"nothing can be bound here: {error}")
        places.append(place)

    yield bind
    for place in reversed(places):
        subprocess.run(["umount", place], check=True)


def moved_and_bound(folder: Path, to: Path, bind: Callable[[Path, Path], None]) -> None:
    to.parent.mkdir(exist_ok=True, parents=True)
    folder.rename(to)
    folder.mkdir()
    bind(to, folder)


@pytest.mark.parametrize("out", ["real", "real/deep", "real/deep/base", "real/deep/base/new"])
def test_a_source_that_is_bound_from_elsewhere(
    out: str, tiny: Sources, tmp_path: Path, bound: Callable[[Path, Path], None]
) -> None:
    moved_and_bound(tiny.base, tmp_path / "real" / "deep" / "base", bound)
    refused(tiny, tmp_path / out)


def test_out_bound_from_a_folder_inside_a_source(
    tiny: Sources, tmp_path: Path, bound: Callable[[Path, Path], None]
) -> None:
    (tiny.base / "sub" / "subsub").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    bound(tiny.base / "sub", tmp_path / "elsewhere")
    refused(tiny, tmp_path / "elsewhere" / "subsub" / "out")


def test_a_file_that_is_bound_from_elsewhere(
    tiny: Sources, tmp_path: Path, bound: Callable[[Path, Path], None]
) -> None:
    (tmp_path / "real").mkdir()
    shutil.move(tiny.base / WEIGHTS, tmp_path / "real" / "weights")
    (tiny.base / WEIGHTS).touch()
    bound(tmp_path / "real" / "weights", tiny.base / WEIGHTS)
    refused(tiny, tmp_path / "real")


def test_what_is_mounted_in_an_out_is_not_replaced(
    tiny: Sources, tmp_path: Path, bound: Callable[[Path, Path], None]
) -> None:
    for name in ("data", "out/data here"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data" / "thesis.tex").write_text("years")
    bound(tmp_path / "data", tmp_path / "out" / "data here")
    with pytest.raises(OutputError, match="something is mounted in it"):
        merge(tiny.recipe("ram"), tmp_path / "out", overwrite=True)
    assert (tmp_path / "data" / "thesis.tex").read_text() == "years"


def test_an_out_that_is_bound_is_filled_inside(
    tiny: Sources, tmp_path: Path, bound: Callable[[Path, Path], None]
) -> None:
    for name in ("disk", "out"):
        (tmp_path / name).mkdir()
    bound(tmp_path / "disk", tmp_path / "out")
    merge(tiny.recipe("ram"), tmp_path / "out")
    assert {"config.json", WEIGHTS} <= {path.name for path in (tmp_path / "disk").iterdir()}
    assert not [path for path in (tmp_path / "disk").iterdir() if path.name.startswith(".")]


# a run at work


class At:
    """Does something when the last pass begins."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do
        self.totals: list[int] = []

    def begin(self, phase: str, total: int, **_: float) -> None:
        self.totals.append(total)
        if phase == "map":
            self._do()

    def advance(self, nbytes: int, **_: float) -> None:
        pass


@pytest.mark.parametrize("overwrite", [False, True])
def test_notes_made_at_out_during_a_merge_stay_and_the_work_is_kept(
    *, overwrite: bool, tiny: Sources, tmp_path: Path
) -> None:
    out, recipe = tmp_path / "out", tiny.recipe("ram+")

    def note() -> None:
        out.mkdir()
        (out / "notes.txt").write_text("mine")

    with pytest.raises(OutputError, match=r"something came there while this run was at work \(notes.txt"):
        merge(recipe, out, overwrite=overwrite, watch=At(note))
    assert (out / "notes.txt").read_text() == "mine"
    out.rename(tmp_path / "notes")
    again = At(lambda: None)
    merge(recipe, out, overwrite=overwrite, watch=again)
    assert again.totals == [0, 0]


# modes


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("mask", "file", "folder"), [(0o002, 0o664, 0o775), (0o077, 0o600, 0o700), (0, 0o666, 0o777)])
def test_files_and_folders_are_as_open_as_the_umask_lets_them(
    mask: int, file: int, folder: int, umask: Callable[[int], int], tiny: Sources, tmp_path: Path
) -> None:
    umask(mask)
    (tiny.base / "code").mkdir()
    (tiny.base / "code" / "modeling.py").write_text("")
    merge(tiny.recipe("ram", output={"shard_size": 9000}), tmp_path / "new" / "out")
    assert modes(tmp_path / "new") == {file}
    for path in (tmp_path / "new", tmp_path / "new" / "out", tmp_path / "new" / "out" / "code"):
        assert stat.S_IMODE(path.stat().st_mode) == folder


@pytest.mark.parametrize("mode", [0o700, 0o2775, 0o755, 0o1777, 0o555])
@pytest.mark.parametrize("filled", [False, True])
def test_a_prepared_out_gives_its_mode_to_the_new_one(
    mode: int, *, filled: bool, tiny: Sources, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    if filled:
        (out / "old.txt").touch()
    out.chmod(mode)
    merge(tiny.recipe("ram"), out, overwrite=filled)
    assert stat.S_IMODE(out.stat().st_mode) == mode
    assert not (out / "old.txt").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_prepared_out_keeps_its_owner_and_group_and_what_is_in_it_has_the_group(
    tiny: Sources, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    os.chown(out, 12345, 23456)
    out.chmod(0o2770)
    merge(tiny.recipe("ram"), out)
    assert (out.stat().st_uid, out.stat().st_gid, stat.S_IMODE(out.stat().st_mode)) == (12345, 23456, 0o2770)
    assert {path.stat().st_gid for path in out.iterdir()} == {23456}
