"""Bytes that change between the passes of a merge are noticed, whatever sizes and times say."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from agentmerge import merge, sweep
from agentmerge.errors import SourceError
from agentmerge.testing import assert_same_tensors, read_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

    from agentmerge.testing import Sources

pytestmark = pytest.mark.usefixtures("unsynced")


class Writing:
    """Changes one bit of a file when a pass begins, and puts its time back."""

    def __init__(
        self, path: Path, phase: str = "map", after: int = 0, error: type[BaseException] | None = None
    ) -> None:
        self._path, self._phase, self._after, self._error = path, phase, after, error
        self._now, self._bytes = "", 0

    def begin(self, phase: str, total: int, **_: float) -> None:
        self._now, self._bytes = phase, 0
        self._write()

    def advance(self, nbytes: int, **_: float) -> None:
        self._bytes += nbytes
        self._write()

    def _write(self) -> None:
        if self._now != self._phase or self._bytes < self._after:
            return
        self._phase = ""
        if self._error is not None:
            raise self._error
        state, content = self._path.stat(), bytearray(self._path.read_bytes())
        content[-1000] ^= 1
        with self._path.open("r+b") as file:
            file.write(content)
        os.utime(self._path, ns=(state.st_atime_ns, state.st_mtime_ns))


def file_of(tiny: Sources, who: str) -> Path:
    return (tiny.base if who == "base" else tiny.agents[who]) / "model.safetensors"


@pytest.mark.parametrize("method", ["ram+", "ram_plus_auto", {"name": "dare", "density": 0.5, "then": "ram+"}, "ties"])
@pytest.mark.parametrize("who", ["base", "tool"])
def test_an_ordinary_merge_ends_when_the_data_changed_after_the_fold(
    who: str, method: Any, tiny: Sources, tmp_path: Path
) -> None:
    recipe, role = tiny.recipe(method), "base" if who == "base" else f"agent '{who}'"
    with pytest.raises(SourceError, match=f"^the data of {role} changed while it was merged.*starts over") as caught:
        merge(recipe, tmp_path / "out", watch=Writing(file_of(tiny, who)))
    assert caught.value.problems[0].where.source == str(file_of(tiny, who).parent)
    assert not (tmp_path / "out").exists()
    merge(recipe, tmp_path / "out")
    merge(recipe, tmp_path / "fresh")
    assert_same_tensors(read_checkpoint(tmp_path / "out"), read_checkpoint(tmp_path / "fresh"))


def test_a_sweep_ends_too_and_shows_nothing(tiny: Sources, tmp_path: Path) -> None:
    watch = Writing(file_of(tiny, "tool"))
    with pytest.raises(SourceError, match="the data of agent 'tool' changed"):
        sweep(tiny.recipe("ram+"), "rescale", [0.1, 0.5], tmp_path / "s", watch=watch)
    assert [path.name for path in (tmp_path / "s").iterdir() if not path.name.startswith(".")] == []
    assert len(sweep(tiny.recipe("ram+"), "rescale", [0.1, 0.5], tmp_path / "s")) == 2


@pytest.mark.parametrize("after", [0, 30_000], ids=["before the last pass", "within it"])
def test_a_merge_that_was_killed_and_resumed_notices_too(after: int, tiny: Sources, tmp_path: Path) -> None:
    recipe = tiny.recipe("ram+", run={"block_size": 4096, "workers": 1})
    with pytest.raises(KeyboardInterrupt):
        merge(recipe, tmp_path / "out", watch=Writing(file_of(tiny, "tool"), after=after, error=KeyboardInterrupt))
    Writing(file_of(tiny, "tool"), phase="now").begin("now", 0)
    with pytest.raises(SourceError, match="the data of agent 'tool' changed"):
        merge(recipe, tmp_path / "out")
    merge(recipe, tmp_path / "out")


def test_what_the_base_stands_for_is_not_told_of_an_agent_that_lacks_the_tensor(tiny: Sources, tmp_path: Path) -> None:
    tensors = read_checkpoint(tiny.agents["tool"])
    rule = {"tensors": "*", "skip": "tool"}
    recipe = tiny.recipe("ram+", rules=[{**rule, "tensors": name} for name in list(tensors)[1:]])
    with pytest.raises(SourceError, match=r"^the data of base changed"):
        merge(recipe, tmp_path / "out", watch=Writing(file_of(tiny, "base")))
