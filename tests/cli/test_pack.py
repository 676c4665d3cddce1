"""`agentmerge pack`, `apply` and `merge --patch`."""

from __future__ import annotations

import errno
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

import agentmerge
from agentmerge.testing import assert_same_tensors, read_checkpoint, write_checkpoint
from tests.deltas.test_pack import sums
from tests.sources.adapters import lora, matrices, put_adapter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Ran


def interrupted(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


def test_packed_and_applied_an_agent_is_itself(agents: Path, tmp_path: Path, run: Callable[..., Ran]) -> None:
    base, code, delta = str(agents / "base"), str(agents / "code"), str(tmp_path / "code.safetensors")
    packed = run("pack", "--base", base, "--agent", code, "--out", delta)
    assert packed.code == 0
    assert packed.out.startswith(f"Wrote {delta}: ")
    assert "elements differ" in packed.out
    assert "bitmap" in packed.out
    applied = run("apply", "--base", base, "--delta", delta, "--out", str(tmp_path / "out"))
    assert applied.code == 0
    assert "the agent's own files" in applied.out
    assert sums(tmp_path / "out") == sums(agents / "code")
    again = run("pack", "--base", base, "--agent", code, "--out", delta)
    assert again.code == 2
    assert "exists already" in again.err


def test_a_patch_is_the_merge_and_its_inverse_undoes_it(
    agents: Path, sources: list[str], tmp_path: Path, run: Callable[..., Ran]
) -> None:
    patch, undo = tmp_path / "patch.safetensors", tmp_path / "undo.safetensors"
    ran = run("merge", *sources, "--patch", str(patch), "--undo", str(undo), "--json")
    assert ran.code == 0
    assert {"merge", "patch", "undo"} == json.loads(ran.out).keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["patch.safetensors", "undo.safetensors"]
    told = run("merge", *sources, "--out", str(tmp_path / "merged"), "--patch", str(tmp_path / "two.safetensors"))
    assert told.code == 0
    assert f"Wrote {tmp_path / 'two.safetensors'}: " in told.out
    assert run("apply", "--base", f"{agents}/base", "--delta", str(patch), "--out", str(tmp_path / "a")).code == 0
    assert sums(tmp_path / "a")["model.safetensors"] == sums(tmp_path / "merged")["model.safetensors"]
    assert run("apply", "--base", str(tmp_path / "a"), "--delta", str(undo), "--out", str(tmp_path / "b")).code == 0
    assert sums(tmp_path / "b") == sums(agents / "base")


def test_where_a_patch_fails_it_is_told_where_the_merge_is(
    sources: list[str], tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, array: object, offset: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("agentmerge.deltas.file.write_from", full)
    ran = run("merge", *sources, "--patch", str(tmp_path / "p"))
    assert ran.code == 2
    assert f"the merge itself is complete in {tmp_path / '.p.merged'}" in ran.err
    assert (tmp_path / ".p.merged" / "model.safetensors").exists()
    monkeypatch.undo()
    assert run("merge", *sources, "--patch", str(tmp_path / "p")).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


@contextmanager
def killed_before(monkeypatch: pytest.MonkeyPatch, file: Path | None = None) -> Iterator[None]:
    """Packing into a file, or into any, ends the command."""
    real = agentmerge.pack

    def pack(base: object, agent: object, out: Path, **options: Any) -> object:
        return interrupted() if file in (None, out) else real(str(base), str(agent), out, **options)

    with monkeypatch.context() as killed:
        killed.setattr("agentmerge.pack", pack)
        yield


@pytest.mark.parametrize("stays", [True, False])
def test_a_patch_that_was_not_finished_goes_on_with_the_merge_that_was(
    sources: list[str], tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, *, stays: bool
) -> None:
    words = ["merge", *sources, "--patch", str(tmp_path / "p"), *(["--out", str(tmp_path / "out")] if stays else [])]
    with killed_before(monkeypatch):
        ran = run(*words)
    assert (ran.code, "the same command resumes" in ran.err) == (130, True)
    merged = tmp_path / ("out" if stays else ".p.merged")
    before = sums(merged)
    with monkeypatch.context() as counting:
        counting.setattr("agentmerge.engine.merge._Merging.run", interrupted)
        assert run(*words).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == (["out", "p"] if stays else ["p"])
    assert run("apply", "--base", sources[1], "--delta", str(tmp_path / "p"), "--out", str(tmp_path / "a")).code == 0
    assert sums(tmp_path / "a") == before


@pytest.mark.parametrize("stays", [True, False])
def test_a_run_that_was_killed_between_patch_and_inverse_goes_on(
    sources: list[str], tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, *, stays: bool
) -> None:
    patch, undo, out = tmp_path / "p", tmp_path / "u", tmp_path / "out"
    words = ["merge", *sources, "--patch", str(patch), "--undo", str(undo), *(["--out", str(out)] if stays else [])]
    with killed_before(monkeypatch, undo):
        assert run(*words).code == 130
    assert patch.exists()
    before = patch.read_bytes()
    assert run(*words).code == 0
    assert patch.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == (["out", "p", "u"] if stays else ["p", "u"])
    ran = run(*words)
    assert (ran.code, "exists already" in ran.err) == (2, True)


def test_between_patch_and_inverse_another_recipe_is_refused_before_anything_is_merged(
    sources: list[str], tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["merge", *sources, "--patch", str(tmp_path / "p"), "--undo", str(tmp_path / "u")]
    with killed_before(monkeypatch, tmp_path / "u"):
        run(*words)
    before = sums(tmp_path / ".p.merged")
    ran = run(*words, "--method", "linear")
    assert (ran.code, "exists already" in ran.err) == (2, True)
    assert sums(tmp_path / ".p.merged") == before


@pytest.mark.parametrize("damage", ["numbers", "shard", "card"])
def test_a_merge_that_was_changed_since_is_not_taken_for_the_finished_one(
    sources: list[str], tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    words = ["merge", *sources, "--patch", str(tmp_path / "p")]
    with killed_before(monkeypatch):
        run(*words)
    merged = tmp_path / ".p.merged"
    before = sums(merged)
    if damage == "card":
        (merged / "config.json").write_text("{}")
    elif damage == "shard":
        (merged / "model.safetensors").unlink()
    else:
        with (merged / "model.safetensors").open("r+b") as file:
            file.seek(-100, 2)
            file.write(bytes(100))
    assert run(*words).code == 0
    assert run("apply", "--base", sources[1], "--delta", str(tmp_path / "p"), "--out", str(tmp_path / "a")).code == 0
    after = sums(tmp_path / "a")
    assert after.pop("merge_record.json") != before.pop("merge_record.json")  # it was made anew
    assert after == before


def test_a_dry_run_takes_what_the_command_takes(
    sources: list[str], tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["merge", *sources, "--patch", str(tmp_path / "p"), "--out", str(tmp_path / "out")]
    with killed_before(monkeypatch):
        run(*words)
    assert run(*words, "--dry-run").code == 0
    assert run(*words, "--method", "ram", "--dry-run").code == 2


def test_with_overwrite_a_merge_in_the_hidden_folder_goes_on_too(
    sources: list[str], tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["merge", *sources, "--patch", str(tmp_path / "p"), "--overwrite"]
    with killed_before(monkeypatch):
        run(*words)
    with monkeypatch.context() as counting:
        counting.setattr("agentmerge.engine.merge._Merging.run", interrupted)
        assert run(*words).code == 0


def test_a_patch_that_is_somebody_elses_is_not_packed_again(
    sources: list[str], tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["merge", *sources, "--patch", str(tmp_path / "p"), "--undo", str(tmp_path / "u")]
    with killed_before(monkeypatch):
        run(*words)
    agentmerge.pack(sources[1], sources[3].partition("=")[2], tmp_path / "p")
    before = (tmp_path / "p").read_bytes()
    ran = run(*words)
    assert (ran.code, "exists already" in ran.err) == (2, True)
    assert (tmp_path / "p").read_bytes() == before


def test_with_a_report_a_killed_patch_goes_on_with_what_was_measured(
    sources: list[str], tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["merge", *sources, "--patch", str(tmp_path / "p"), "--out", str(tmp_path / "out")]
    with killed_before(monkeypatch):
        run(*words)
        ran = run(*words, "--report")
        assert (ran.code, "out" in ran.err) == (2, True)
        run(*words, "--report", "--overwrite")
    assert not (tmp_path / "out" / "report.html").exists()
    assert run(*words, "--report").code == 0
    assert (tmp_path / "out" / "report.html").exists()


def test_a_patch_of_another_recipe_does_not_go_on_with_an_earlier_merge(
    sources: list[str], tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["merge", *sources, "--patch", str(tmp_path / "p")]
    with killed_before(monkeypatch):
        run(*words, "--out", str(tmp_path / "out"))
        run(*words)
    ran = run(*words, "--out", str(tmp_path / "out"), "--method", "ram")
    assert (ran.code, "out" in ran.err) == (2, True)
    assert run(*words, "--method", "ram").code == 0
    assert "Method ram:" in run("inspect", str(tmp_path / "p")).out


def test_what_is_not_ours_beside_a_patch_stays(sources: list[str], tmp_path: Path, run: Callable[..., Ran]) -> None:
    (tmp_path / ".p.merged").mkdir()
    (tmp_path / ".p.merged" / "mine").write_text("x")
    ran = run("merge", *sources, "--patch", str(tmp_path / "p"), "--overwrite")
    assert ran.code == 2
    assert "what lies there is no merge" in ran.err
    assert (tmp_path / ".p.merged" / "mine").read_text() == "x"


def test_what_does_not_fit_is_told_before_anything_is_merged(
    sources: list[str], tmp_path: Path, run: Callable[..., Ran]
) -> None:
    (tmp_path / "taken").write_text("x")
    patch = str(tmp_path / "p")
    for options, message in (
        ([], "neither --out nor --patch"),
        (["--patch", str(tmp_path / "taken")], "exists already"),
        (["--patch", patch, "--undo", patch], "are both"),
        (["--out", str(tmp_path / "o"), "--patch", f"{sources[1]}/p"], "lies in, or holds, the source of base"),
        (["--out", str(tmp_path / "o"), "--patch", str(tmp_path / "o" / "p")], "lies in, or holds, the merge"),
        (["--patch", patch, "--undo", str(tmp_path / ".p.merged")], "lies in, or holds, the merge"),
        (["--patch", patch, "--report"], "--report: there is no --out"),
        (["--patch", patch, "--push", "ada/merged"], "--push: there is no --out"),
        (
            ["--out", str(tmp_path / "o"), "--patch", patch, "--method", "ram_plus", "--sweep", "rescale=0.1,0.2"],
            "sweep",
        ),
    ):
        ran = run("merge", *sources, *options)
        assert ran.code == 2
        assert message in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert run("merge", *sources, "--patch", patch, "--dry-run").code == 0


def test_an_adapter_is_packed_exact_and_has_no_inverse_then(
    agents: Path, tmp_path: Path, run: Callable[..., Ran]
) -> None:
    q, (a, b) = "model.layers.0.self_attn.q_proj", matrices(1, 192, 192, 4)
    put_adapter(tmp_path / "lora", lora(q, a, b))
    words = ["pack", "--base", f"{agents}/base", "--out", str(tmp_path / "d"), "--materialize", "exact", "--agent"]
    ran = run(*words, str(tmp_path / "lora"), "--undo", str(tmp_path / "u"))
    assert (ran.code, "--undo: found --materialize exact" in ran.err) == (2, True)
    ran = run(*words, str(tmp_path / "lora"))
    assert ran.code == 0, ran.err
    assert f"kept whole, as the base has them in another dtype or shape: {q}.weight" in ran.out
    ran = run(*words, f"{agents}/code", "--overwrite")
    assert "materialize says nothing of it" in ran.err


def test_of_an_agent_in_another_dtype_the_dtype_is_named_and_the_merge_that_packs_it(
    agents: Path, tmp_path: Path, run: Callable[..., Ran]
) -> None:
    base, wide, delta = agents / "base", tmp_path / "wide", tmp_path / "d.safetensors"
    stored = read_checkpoint(agents / "code")
    write_checkpoint(wide, {name: array.astype("float32") for name, array in stored.items()})
    packed = run("pack", "--base", str(base), "--agent", str(wide), "--out", str(delta))
    assert packed.code == 0
    assert "as the base has them in another dtype or shape" in packed.out
    assert "lacks" not in packed.out
    assert " differ" not in packed.out.splitlines()[0]
    assert "are F32, where the base has BF16: kept whole, not compared" in packed.err
    command = packed.err.partition("agentmerge merge ")[2].replace("\n", " ").split()
    delta.unlink()
    assert run("merge", *command).code == 0
    assert run("apply", "--base", str(base), "--delta", str(delta), "--out", str(tmp_path / "a")).code == 0
    assert_same_tensors(read_checkpoint(tmp_path / "a"), stored)
