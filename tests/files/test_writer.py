"""The writer puts every block in its place, journals only what is synced, and resumes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentmerge.errors import OutputError
from agentmerge.files import writer as module
from agentmerge.files.layout import plan_layout
from agentmerge.files.writer import JOURNAL, PARTIAL, REFUSED, Writer
from agentmerge.testing import assert_same_tensors, random_base, read_checkpoint, spec_of

if TYPE_CHECKING:
    from agentmerge.files.layout import Layout
    from agentmerge.tensors import Array

TENSORS = random_base(0)
WORK = {"seed": 0}
FILES = {"config.json": b"{}", "a/b.txt": b"x", "merge_record.json": b"{}"}


def layout(shard_size: int = 12_000) -> Layout:
    return plan_layout([spec_of(name, array) for name, array in TENSORS.items()], shard_size)


def fill(writer: Writer, plan: Layout, names: Any = TENSORS, step: int = 2048) -> None:
    jobs = [
        (plan.places[n], i, TENSORS[n].reshape(-1)[i : i + step])
        for n in names
        for i in range(0, TENSORS[n].size, step)
    ]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda job: writer.write(*job), jobs))


def staged(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("shard_size", [1, 12_000, 10**9])
def test_what_is_written_is_read_back_from_the_shards(tmp_path: Path, shard_size: int) -> None:
    plan = layout(shard_size)
    with Writer(tmp_path / "out", plan, WORK) as writer:
        fill(writer, plan)
        writer.finish(FILES)
    for shard in plan.shards:
        assert (tmp_path / "out" / shard.name).stat().st_size == shard.size
    found: dict[str, Array] = {}
    for shard in plan.shards:
        found |= read_checkpoint(tmp_path / "out" / shard.name)
    assert_same_tensors(found, TENSORS)
    assert (tmp_path / "out" / "a" / "b.txt").read_bytes() == b"x"
    assert staged(tmp_path) == ["out"]


def test_nothing_in_the_staging_folder_looks_like_a_model_while_it_is_written(tmp_path: Path) -> None:
    with Writer(tmp_path / "out", layout(), WORK) as writer:
        assert staged(tmp_path) == [".out.agentmerge"]
        assert all(name == JOURNAL or name.endswith(PARTIAL) for name in staged(writer.folder))


def test_the_disk_space_is_taken_at_the_start(tmp_path: Path) -> None:
    plan = layout()
    with Writer(tmp_path / "out", plan, WORK) as writer:
        for shard in plan.shards:
            path = writer.folder / (shard.name + PARTIAL)
            assert path.stat().st_size == shard.size
            assert path.read_bytes()[: len(shard.header)] == shard.header


def test_a_second_run_is_refused_while_the_first_one_writes(tmp_path: Path) -> None:
    with Writer(tmp_path / "out", layout(), WORK) as writer:
        with pytest.raises(OutputError, match="another run is writing here"):
            Writer(tmp_path / "out", layout(), WORK)
        with pytest.raises(OutputError, match="another run is writing here"):
            Writer(tmp_path / "out", layout(), {"seed": 1}, overwrite=True)
        assert (writer.folder / JOURNAL).exists()


def test_a_killed_run_goes_on_with_its_entries_and_its_bytes(tmp_path: Path) -> None:
    plan = layout()
    first, *rest = TENSORS
    with Writer(tmp_path / "out", plan, WORK) as writer:
        fill(writer, plan, [first])
        writer.commit([{"phase": "map", "tensor": first}])
    with Writer(tmp_path / "out", plan, WORK) as writer:
        assert writer.entries == [{"phase": "map", "tensor": first}]
        fill(writer, plan, rest)
        writer.finish(FILES)
    found: dict[str, Array] = {}
    for shard in plan.shards:
        found |= read_checkpoint(tmp_path / "out" / shard.name)
    assert_same_tensors(found, TENSORS)


def test_other_work_is_refused_and_overwrite_starts_over(tmp_path: Path) -> None:
    with Writer(tmp_path / "out", layout(), WORK) as writer:
        writer.commit([{"phase": "map"}])
    with pytest.raises(OutputError, match="seed was 0, is 1"):
        Writer(tmp_path / "out", layout(), {"seed": 1})
    with Writer(tmp_path / "out", layout(), WORK, overwrite=True) as writer:
        assert writer.entries == [{"phase": "map"}]
    with Writer(tmp_path / "out", layout(1), {"seed": 1}, overwrite=True) as writer:
        assert writer.entries == []
        assert len(staged(writer.folder)) == len(TENSORS) + 1


def test_refused_work_gives_the_space_back_says_why_and_starts_over(tmp_path: Path) -> None:
    with Writer(tmp_path / "out", layout(), WORK) as writer:
        writer.commit([{"phase": "map"}])
        writer.refuse("w: 3 NaN")
    folder = tmp_path / ".out.agentmerge"
    assert staged(folder) == [JOURNAL, REFUSED]
    assert (folder / REFUSED).read_text() == "w: 3 NaN"
    with Writer(tmp_path / "out", layout(), {"seed": 2}) as writer:
        assert writer.entries == []
        assert not (folder / REFUSED).exists()


def test_no_space_is_told_before_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
    with pytest.raises(OutputError, match=r"bytes are needed on this disk, 10 are free"):
        Writer(tmp_path / "out", layout(), WORK)
    assert staged(tmp_path) == []


def test_a_name_that_the_system_refuses_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="File name too long"):
        Writer(tmp_path / ("o" * 300), layout(), WORK)


def test_space_that_runs_out_later_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = layout()
    with Writer(tmp_path / "out", plan, WORK) as writer:

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(module, "write_from", full)
        monkeypatch.setattr(module, "write_past_cache", full)
        with pytest.raises(OutputError, match=r"No space left on device.*run the same command again: it resumes"):
            fill(writer, plan)


def test_an_entry_is_journalled_only_after_its_own_data_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that starts between a write's first step and its last one must not take the later data for synced."""
    plan = layout(10**9)
    place = plan.places["model.norm.weight"]
    events: list[str] = []
    inside, go_on = threading.Event(), threading.Event()
    write_from, sync_data = module.write_from, module.sync_data

    def slow(fd: int, data: Any, offset: int) -> None:
        if threading.current_thread().name == "slow":
            inside.set()
            assert go_on.wait(10)
            write_from(fd, data, offset)
            events.append("written")
        else:
            write_from(fd, data, offset)

    with Writer(tmp_path / "out", plan, WORK) as writer:
        monkeypatch.setattr(module, "write_from", slow)
        monkeypatch.setattr(module, "open_direct", lambda path: None)
        monkeypatch.setattr(module, "sync_data", lambda fd: events.append("synced") or sync_data(fd))
        thread = threading.Thread(target=writer.write, args=(place, 0, TENSORS["model.norm.weight"]), name="slow")
        thread.start()
        assert inside.wait(10)
        writer.commit([])
        go_on.set()
        thread.join()
        writer.commit([{"tensor": "model.norm.weight"}])
    assert events.index("written") < len(events) - 1 - events[::-1].index("synced")


def test_config_and_index_are_moved_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(module.Staging, "publish", lambda self, names: order.extend(names))
    files = {**FILES, "model.safetensors.index.json": b"{}", "zzz.txt": b"x"}
    with Writer(tmp_path / "out", layout(), WORK) as writer:
        writer.finish(files)
    assert order[-2:] == ["config.json", "model.safetensors.index.json"]
    assert order[0].startswith("model-00001")


def test_many_shards_do_not_need_as_many_open_files(tmp_path: Path) -> None:
    specs = [spec_of(f"w{i}", np.zeros(8, np.float32)) for i in range(300)]
    plan = plan_layout(specs, 1)
    opened = Path("/proc/self/fd")
    before = len(list(opened.iterdir())) if opened.is_dir() else 0
    with Writer(tmp_path / "out", plan, WORK) as writer:
        for i, place in enumerate(plan.places.values()):
            writer.write(place, 0, np.full(8, i, np.float32))
        if before:
            assert len(list(opened.iterdir())) - before < 150
        writer.finish(FILES)
    assert read_checkpoint(tmp_path / "out" / plan.shards[299].name)["w299"][0] == 299
