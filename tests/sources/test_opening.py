"""Whatever is named is opened by the first opener that knows it; what goes wrong knows whose source it is."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentmerge.errors import BASE, Role, SourceError, SourceNotFoundError, Where
from agentmerge.sources import opening
from agentmerge.sources.hub import HubId, hub_id
from agentmerge.sources.opening import Opener, Request, opened
from agentmerge.testing import write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agentmerge.sources.source import Source

TENSORS = {"a": np.ones(3, np.float32)}


def test_a_problem_knows_role_and_text(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    for role in (BASE, Role("code"), Role("code", "importance")):
        with pytest.raises(SourceError, match="an empty file") as caught, opened(role, str(tmp_path)):
            pass
        (problem,) = caught.value.problems
        assert problem.where == Where(role, str(tmp_path), path=str(tmp_path / "model.safetensors"))
        assert problem.expected == "at least the 8 bytes of a safetensors length"


def test_a_note_knows_role_and_text(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TENSORS)
    (tmp_path / "pytorch_model.bin").touch()
    with opened(Role("code"), str(tmp_path)) as source:
        (note,) = source.notes
    assert note.where == Where(Role("code"), str(tmp_path), path=str(tmp_path))


def test_the_text_stays_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_checkpoint(tmp_path / "here", TENSORS).parent)
    for text, whole in (("./here/", True), ("here/model.safetensors", False)):
        with opened(BASE, text) as source:
            assert source.text == text
            assert (source.folder.path.resolve(), source.folder.whole) == (tmp_path / "here", whole)


def test_a_source_is_seen_anew_by_a_view_of_its_weights(tmp_path: Path) -> None:
    with opened(BASE, str(write_checkpoint(tmp_path, TENSORS))) as source:
        seen = source.seen_as(source.weights, "in another light")
        assert replace(seen, notes=()) == source
        assert [(str(note), note.where.role) for note in seen.notes] == [("in another light", BASE)]


def test_an_opener_of_a_new_kind_is_an_entry_and_is_given_the_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def changes(request: Request) -> Iterator[Source]:
        assert request.base is not None
        yield replace(request.base, role=request.role, text=request.text)

    adapter = Opener(lambda request: "adapter_config.json" in (request.names or ()), changes)
    monkeypatch.setattr(opening, "OPENERS", (adapter, *opening.OPENERS))
    write_checkpoint(tmp_path / "base", TENSORS)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").touch()
    with (
        opened(BASE, str(tmp_path / "base")) as base,
        opened(Role("code"), str(tmp_path / "adapter"), base) as agent,
    ):
        assert agent.specs == base.specs
        assert str(agent.role) == "agent 'code'"


def test_an_adapter_beside_whole_weights_is_no_adapter(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, TENSORS, files={"adapter_config.json": b"{}", "adapter_model.safetensors": b""})
    with opened(BASE, str(tmp_path)) as source:
        assert list(source.specs) == ["a"]


def test_gguf_alone_is_told_what_to_do_and_beside_pytorch_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(SourceError, match="merge the safetensors checkpoint that they were made from"):
        opened(BASE, str(tmp_path)).__enter__()
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(SourceError, match=r"pytorch_model\.bin: an empty file, expected a file of torch\.save"):
        opened(BASE, str(tmp_path)).__enter__()


def test_a_path_that_exists_wins_over_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceNotFoundError, match="hf download org/model --local-dir DIR"):
        opened(BASE, "org/model").__enter__()
    write_checkpoint(tmp_path / "org" / "model", TENSORS)
    with opened(BASE, "org/model") as source:
        assert list(source.specs) == ["a"]


@pytest.mark.parametrize(
    ("text", "folder"),
    [
        ("org/model@v1", "org/model-v1"),
        ("hf://org/model", "org/model"),
        ("org/model@refs/pr/3", "org/model-refs-pr-3"),
    ],
)
def test_an_id_is_found_in_the_folder_that_it_is_downloaded_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, folder: str
) -> None:
    monkeypatch.chdir(tmp_path)
    found = hub_id(text)
    assert found is not None
    assert found.command.endswith(f"--local-dir {folder}")
    write_checkpoint(tmp_path / folder, TENSORS)
    with opened(BASE, text) as source:
        assert list(source.specs) == ["a"]
        assert (source.text, source.folder.path.name) == (text, folder.rpartition("/")[2])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubId("org/name")),
        ("hf://org/name@v1.0", HubId("org/name", "v1.0")),
        ("org/na.me-1_x@refs/pr/3", HubId("org/na.me-1_x", "refs/pr/3")),
        ("/org/name", None),
        ("./org/name", None),
        ("name", None),
        ("a/b/c", None),
        ("~/x", None),
        ("org/", None),
        ("日本/x", None),
    ],
)
def test_what_is_an_id_on_the_hub(text: str, expected: HubId | None) -> None:
    assert hub_id(text) == expected


BESIDE = {
    "adapter_config.json": (b'{"base_model_name_or_path": "x", "r": 8}', "a JSON file"),
    "model.safetensors.index.json": (b'\n{"weight_map": {}, "metadata": {}}', "a JSON file"),
    "README.md": ("# Übermodell, a card of some length\n".encode(), "a text file"),
    "tokenizer.model": (b"\x0a\x0e\x0a\x05<unk>\x15\x00\x00\x00\x00\x18\x02 and more", "a .model file"),
    "weights.gguf": (b"GGUF\x03\x00\x00\x00\x01\x00\x00\x00", "a GGUF file"),
    "weights.zip": (b"PK\x03\x04\x00\x00\x08\x08\x00\x00weights", "a zip file"),
    "wrong.bin": (b"\x40\0\0\0\0\0\0\0" + b'{"a":{"dtype":"F32"', "a safetensors file"),
    "gguf.pt": (b"GGUF\x03\x00\x00\x00\x01\x00\x00\x00", "a GGUF file"),
    "page.safetensors": (b"<!DOCTYPE html><html>not found</html>", "an HTML or XML page"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_file_that_holds_no_weights_is_told_as_what_it_is(tmp_path: Path, name: str) -> None:
    content, kind = BESIDE[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError) as caught, opened(Role("code"), str(tmp_path / name)):
        pass
    assert f"{name}: {kind}" in str(caught.value)
    assert "damaged" not in str(caught.value)
    if name in ("adapter_config.json", "model.safetensors.index.json", "README.md", "tokenizer.model"):
        assert f"Give the folder that the weights lie in, for example {tmp_path}," in str(caught.value)
