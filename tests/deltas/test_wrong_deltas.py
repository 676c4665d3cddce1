"""A delta over another base, damaged, cut, lying, or one that can't be written: told, and nothing appears."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentmerge import apply, merge, pack, probe
from agentmerge.deltas import apply as applying
from agentmerge.deltas import file as new_file
from agentmerge.deltas import pack as packing
from agentmerge.errors import BASE, DataError, OutputError, SourceError
from agentmerge.files.header import header_of
from agentmerge.files.save import save
from agentmerge.files.writer import Writer
from agentmerge.sources.opening import opened
from agentmerge.sources.packed_format import Manifest
from agentmerge.tensors import DTYPES
from agentmerge.testing import assert_same_tensors, make_agents, read_checkpoint, write_checkpoint
from tests.deltas.test_pack import over, sums, whole

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.files.layout import Place
    from agentmerge.tensors import Array

BF16 = DTYPES["BF16"]


def manifest_in(path: Path) -> tuple[int, bytes]:
    """Where the manifest lies in a delta, and its bytes."""
    with path.open("rb") as stream:
        header = header_of(stream.fileno(), path)
    entry = header.tensors["agentmerge.manifest"]
    begin = header.data_start + entry.begin
    return begin, path.read_bytes()[begin : header.data_start + entry.end]


def test_another_base_is_refused_when_the_delta_is_opened(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in")
    pack(made.base, made.agents["code"], tmp_path / "d.safetensors")
    for other in (made.agents["tool"], make_agents(tmp_path / "other", seed=7).base):
        recipe = {"base": str(other), "agents": {"a": str(tmp_path / "d.safetensors")}, "method": "ram"}
        with pytest.raises(SourceError, match=r"lies over another base than .* the numbers differ"):
            apply(other, tmp_path / "d.safetensors", tmp_path / "out")
        with pytest.raises(SourceError, match=r"lies over another base than .* the numbers differ"):
            merge(recipe, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    few = {name: array for name, array in read_checkpoint(made.base).items() if name != "model.norm.weight"}
    write_checkpoint(tmp_path / "few", few)
    with pytest.raises(SourceError, match=r"has no such 'model.norm.weight'"):
        apply(tmp_path / "few", tmp_path / "d.safetensors", tmp_path / "out")
    with (
        pytest.raises(SourceError, match="a packed delta, expected a whole checkpoint"),
        opened(BASE, str(tmp_path / "d.safetensors")),
    ):
        pass


def test_one_other_number_in_the_base_is_found_before_anything_appears(tmp_path: Path) -> None:
    base = {"w": np.zeros(200_000, BF16), "v": np.zeros(4, BF16)}
    agent = {"w": base["w"].copy(), "v": base["v"]}
    agent["w"][10] = 1
    write_checkpoint(tmp_path / "base", base)
    write_checkpoint(tmp_path / "agent", agent)
    delta = tmp_path / "d.safetensors"
    pack(tmp_path / "base", tmp_path / "agent", delta)
    base["w"][199_000] = 1  # not in the sample, which is from the middle
    save(tmp_path / "base", base)
    with pytest.raises(SourceError, match="tensor 'w' is not what was packed"):
        apply(tmp_path / "base", delta, tmp_path / "out")
    recipe = {"base": str(tmp_path / "base"), "agents": {"a": str(delta)}, "method": "ram"}
    for attempt in (lambda: merge(recipe, tmp_path / "out"), lambda: probe(recipe)):
        with pytest.raises(SourceError, match="its numbers are not those that were packed"):
            attempt()
    assert not (tmp_path / "out").exists()


def test_a_base_file_that_changed_stops_apply_and_what_a_merge_looks_at_stops_it_too(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in")
    for folder in (made.base, made.agents["code"]):
        (folder / "LICENSE").write_text("mine")
    pack(made.base, made.agents["code"], tmp_path / "d.safetensors")
    (made.base / "LICENSE").write_text("theirs")
    with over(made.base, tmp_path / "d.safetensors") as source:
        assert [path.name for path in source.folder.path.iterdir()] == ["config.json"]
    with pytest.raises(SourceError, match="whose LICENSE has other bytes"):
        apply(made.base, tmp_path / "d.safetensors", tmp_path / "out")
    (made.base / "config.json").write_text("{}")
    with pytest.raises(SourceError, match=r"whose config\.json it shares: that is gone, or has other bytes"):
        apply(made.base, tmp_path / "d.safetensors", tmp_path / "out")


def test_a_base_in_other_shards_is_the_same_base_for_a_merge(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in", shard_size=20_000)
    pack(made.base, made.agents["code"], tmp_path / "d.safetensors")
    write_checkpoint(tmp_path / "other", read_checkpoint(made.base), shard_size=12_000)
    with over(tmp_path / "other", tmp_path / "d.safetensors") as source:
        assert_same_tensors(whole(source), read_checkpoint(made.agents["code"]))
    with pytest.raises(SourceError, match=r"whose model\.safetensors\.index\.json has other bytes"):
        apply(tmp_path / "other", tmp_path / "d.safetensors", tmp_path / "out")


def test_a_file_that_is_cut_or_damaged_is_told_and_never_read_as_numbers(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in")
    good, bad = tmp_path / "d.safetensors", tmp_path / "bad.safetensors"
    pack(made.base, made.agents["tool"], good)
    raw = good.read_bytes()
    agent = read_checkpoint(made.agents["tool"])
    rng = np.random.default_rng(0)
    with good.open("rb") as stream:
        start = header_of(stream.fileno(), good).data_start
    refused: list[str] = []
    for _ in range(40):
        at = int(rng.integers(start, len(raw)))
        damaged = bytearray(raw)
        damaged[at] ^= 1 << int(rng.integers(8))
        bad.write_bytes(damaged)
        try:
            apply(made.base, bad, tmp_path / "out", overwrite=True)
        except SourceError as error:
            refused.append(str(error))
        else:
            assert_same_tensors(read_checkpoint(tmp_path / "out"), agent)
    assert len(refused) > 35  # the others hit a word of the manifest on which no number depends
    assert all(str(bad) in text for text in refused)
    bad.write_bytes(raw[:-100])
    with pytest.raises(SourceError, match="truncated"), over(made.base, bad):
        pass


def test_a_manifest_that_lies_is_refused(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in")
    good, bad = tmp_path / "d.safetensors", tmp_path / "bad.safetensors"
    pack(made.base, made.agents["code"], good)
    begin, text = manifest_in(good)
    for old, new in (
        (b'"version":1', b'"version":2'),
        (b'"chunk":65536', b'"chunk":65537'),
        (b'"form":"bitmap"', b'"form":"bitmaq"'),
        (b'"dtype":"BF16"', b'"dtype":"F32" '),
        (b'"changed":', b'"changes":'),
        (b'"config.json"', b'"../fig.json"'),
        (b'"print":"', b'"print":"X'),
        (b"[97,53]", b"[53,97]"),
    ):
        assert old in text
        changed = (
            text.replace(old, new)[: len(text)] if len(old) == len(new) else text.replace(old, new, 1)[: len(text)]
        )
        bad.write_bytes(good.read_bytes()[:begin] + changed)
        with pytest.raises(SourceError), over(made.base, bad):
            pass


def test_a_manifest_comes_back_as_it_was(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in")
    pack(made.base, made.agents["code"], tmp_path / "d.safetensors")
    _, text = manifest_in(tmp_path / "d.safetensors")
    assert Manifest.decode(text, tmp_path).encode() == text


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_agents(tmp_path / "in")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(new_file, "write_from", full)
    with pytest.raises(OutputError, match="No space left") as caught:
        pack(made.base, made.agents["code"], tmp_path / "out" / "d.safetensors")
    assert "Free some space" in str(caught.value)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENAMETOOLONG])
def test_a_place_that_takes_no_file_is_not_told_to_be_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(new_file, "lock_exclusive", refuse)
    with pytest.raises(OutputError, match=os.strerror(number)) as caught:
        new_file.NewFile(tmp_path / "d.safetensors")
    assert str(caught.value).endswith("Choose another place.")


def test_what_a_killed_run_left_is_no_obstacle_and_no_delta(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in")
    (tmp_path / ".d.safetensors.part").write_bytes(b"x" * 100_000)
    pack(made.base, made.agents["code"], tmp_path / "d.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.safetensors", "in"]
    first = (tmp_path / "d.safetensors").read_bytes()
    with pytest.raises(OutputError, match="exists already"):
        pack(made.base, made.agents["code"], tmp_path / "d.safetensors")
    pack(made.base, made.agents["code"], tmp_path / "d.safetensors", overwrite=True, workers=1)
    assert (tmp_path / "d.safetensors").read_bytes() == first  # whatever the threads did
    for name, message in (("model.safetensors", "is the agent"), ("new.safetensors", "lies in, or holds, the agent")):
        with pytest.raises(OutputError, match=message):
            pack(made.base, made.agents["code"], made.agents["code"] / name, overwrite=True)


def test_an_apply_that_was_stopped_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_agents(tmp_path / "in", shard_size=20_000)
    pack(made.base, made.agents["tool"], tmp_path / "d.safetensors")
    monkeypatch.setattr(applying, "COMMIT_SECONDS", 0)
    written: list[str] = []
    write = Writer.write

    def some(writer: Writer, place: Place, start: int, array: Array) -> None:
        if len(written) == 3:  # later: there are four already
            raise KeyboardInterrupt
        written.append(place.spec.name)
        write(writer, place, start, array)

    monkeypatch.setattr(Writer, "write", some)
    with pytest.raises(KeyboardInterrupt):
        apply(made.base, tmp_path / "d.safetensors", tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()
    first, written[:] = list(written), ["", "", "", ""]
    apply(made.base, tmp_path / "d.safetensors", tmp_path / "out", workers=1)
    assert len(first) == 3
    assert 0 < len({*written} - {""}) < 5  # not all of the five once more
    assert sums(tmp_path / "out") == sums(made.agents["tool"])


def test_a_source_that_changes_while_it_is_packed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_agents(tmp_path / "in")
    run = packing._Packing.run

    def slowly(self: packing._Packing) -> None:
        run(self)
        os.utime(made.agents["code"] / "model.safetensors", (1, 1))

    monkeypatch.setattr(packing._Packing, "run", slowly)
    with pytest.raises(SourceError, match="changed while in use"):
        pack(made.base, made.agents["code"], tmp_path / "d.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_weights_that_are_not_finite_are_packed_and_still_stop_a_merge(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in")
    agent = read_checkpoint(made.agents["code"])
    agent["model.norm.weight"][7] = np.nan
    write_checkpoint(tmp_path / "bad", agent)
    pack(made.base, tmp_path / "bad", tmp_path / "d.safetensors")
    recipe = {"base": str(made.base), "agents": {"a": str(tmp_path / "d.safetensors")}, "method": "ram"}
    with pytest.raises(DataError, match=r"model\.norm\.weight"):
        merge(recipe, tmp_path / "out")


def test_several_deltas_in_a_folder_and_a_checkpoint_as_delta_are_refused(tmp_path: Path) -> None:
    made = make_agents(tmp_path / "in")
    for name in ("a", "b"):
        pack(made.base, made.agents["code"], tmp_path / "d" / f"{name}.safetensors")
    with pytest.raises(SourceError, match=r"found a\.safetensors, a packed delta, beside b\.safetensors"):
        apply(made.base, tmp_path / "d", tmp_path / "out")
    (tmp_path / "d" / "b.safetensors").unlink()
    apply(made.base, tmp_path / "d", tmp_path / "out")  # alone in a folder it is the folder's
    assert sums(tmp_path / "out") == sums(made.agents["code"])
    with pytest.raises(SourceError, match="a whole checkpoint, expected a delta"):
        apply(made.base, made.agents["tool"], tmp_path / "other")
