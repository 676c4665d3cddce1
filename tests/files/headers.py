"""The header of a file by its path, as a source that opens it reads it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from agentmerge.files.header import Header, header_of
from agentmerge.files.os_errors import source_errors
from agentmerge.files.positional import open_to_read

if TYPE_CHECKING:
    from pathlib import Path


def read_header(path: Path) -> Header:
    with source_errors(str(path)):
        fd = open_to_read(path)
        try:
            return header_of(fd, path)
        finally:
            os.close(fd)
