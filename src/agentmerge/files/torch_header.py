"""The tensors of a file of torch.save: a state dict, read without torch and without running anything of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentmerge.errors import Where
from agentmerge.files.documents import abbreviated
from agentmerge.files.header import METADATA, Header, Strided, TensorEntry
from agentmerge.files.os_errors import AGAIN
from agentmerge.files.pickles import Call, Persistent, Record
from agentmerge.files.torch_archive import read_archive, refuse
from agentmerge.files.torch_tensors import CALLS, tensor_of

if TYPE_CHECKING:
    from pathlib import Path

SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
ALONE = "Save the model's state dict alone (its names with tensors), or call save_pretrained."


def torch_header(fd: int, path: Path) -> Header:
    """The tensors of an open file of torch.save; `strided` tells which do not lie in one piece.

    Args:
        fd: opened for reading.
        path: for messages.

    Raises:
        SourceError: whatever is wrong with it.
        OSError: it can't be read.
    """
    archive = read_archive(fd, path, CALLS)
    if not isinstance(archive.value, dict):
        refuse(path, f"a pickle of {kind(archive.value)}", "tensors by name", ALONE)
    entries: dict[str, TensorEntry] = {}
    strided: dict[str, Strided] = {}
    for name, value in archive.value.items():
        if not isinstance(name, str) or not isinstance(value, Call):
            refuse(path, f"its entry {abbreviated(name)} is {kind(value)}", "tensors by name", ALONE)
        if name == METADATA:
            refuse(path, f"a tensor of the name {abbreviated(name)}", "another name", AGAIN)
        entries[name], layout = tensor_of(value, archive.storages, Where(tensor=name, path=str(path)))
        if layout is not None:
            strided[name] = layout
    return Header(in_order(entries), {}, 0, archive.sha256, strided)


def in_order(entries: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """Tensors as their data lie in the file."""
    return dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))


def kind(value: Any) -> str:
    """What something that a pickle describes is, for messages."""
    known = {dict: "a mapping", list: "a list", tuple: "a tuple", Call: "a tensor", Persistent: "a bare storage"}
    return f"an object of {value.name}" if isinstance(value, Record) else known.get(type(value), abbreviated(value))
