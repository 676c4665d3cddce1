"""What the OS says becomes an error of ours that names the place; our own errors pass as they are."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from agentmerge.errors import OutputError, SourceError, SourceNotFoundError
from agentmerge.files.os_errors import output_errors, source_errors
from agentmerge.files.positional import ShortRead


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (FileNotFoundError(), SourceNotFoundError, "it: no such file. Download or save it again."),
        (PermissionError(errno.EACCES, "Permission denied"), SourceError, "it: can't be read: Permission denied."),
        (ShortRead(3, 8), SourceError, "it: truncated: 3 of 8 bytes are there. The file is damaged: download or save "
                                       "it again."),
    ],
)  # fmt: skip
def test_reading(raised: Exception, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught, source_errors("it", Path("file")):
        raise raised
    assert str(caught.value) == text
    assert caught.value.problems[0].where.path == "file"


@pytest.mark.parametrize(
    ("code", "todo", "text"),
    [
        (errno.ENOSPC, "", "Free some space and run the same command again: it resumes."),
        (errno.EIO, "", "Check the disk."),
        (errno.EACCES, "", "Choose another place."),
        (errno.EROFS, "", "Choose another place."),
        (errno.EROFS, "Go elsewhere.", "Go elsewhere."),
        (errno.ENOSPC, "Go elsewhere.", "Go elsewhere."),
    ],
)
def test_writing(code: int, todo: str, text: str) -> None:
    with pytest.raises(OutputError) as caught, output_errors(Path("out"), todo):
        raise OSError(code, "no")
    assert str(caught.value) == f"out: can't be written: [Errno {code}] no. {text}"


@pytest.mark.parametrize("error", [SourceError("x"), OutputError("x"), SourceNotFoundError("x"), ValueError("x")])
def test_our_own_errors_and_all_others_pass(error: Exception) -> None:
    for border in (source_errors("it"), output_errors(Path("out"))):
        with pytest.raises(type(error)) as caught, border:
            raise error
        assert caught.value is error
