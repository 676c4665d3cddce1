"""The process and those around it: signals that end it, and standard streams that nobody reads or that are full."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
"""What asks a process to end; the exit code is 128 and the signal's number."""


class Stopped(BaseException):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        self.code = 128 + number
        name = signal.Signals(number).name
        super().__init__("Interrupted" if number == signal.SIGINT else f"Stopped by {name}")


class Unprinted(Exception):
    """Standard output took not all that was to be printed."""

    def __init__(self, cause: OSError) -> None:
        self.unread = cause.errno in (errno.EPIPE, errno.EBADF)
        """Whether its reader went away, or nobody was to read it, which is his to decide."""
        self.whole = ""
        """What is complete nonetheless."""
        super().__init__(cause.strerror or str(cause))


@contextmanager
def printing(whole: str) -> Iterator[None]:
    """Say in the end, where standard output fails inside, that the work itself is done.

    Args:
        whole: a sentence about it, without its full stop.
    """
    try:
        yield
    except Unprinted as error:
        error.whole = error.whole or whole
        raise


@contextmanager
def calm() -> Iterator[None]:
    """What is no bug of ours ends the process with a line on stderr and a code instead of a traceback."""
    _hold_closed()
    with ExitStack() as stack:
        stack.enter_context(_ended_by_line())
        stack.enter_context(_signals())
        stack.enter_context(_streams())
        yield


@contextmanager
def _ended_by_line() -> Iterator[None]:
    from agentmerge.errors import MergeError

    try:
        yield
    except MergeError as error:
        notes = [f"warning: {note}" for note in getattr(error, "__notes__", ())]
        _end(2, "\n".join([f"{type(error).__name__}: {error}", *notes]))
    except Unprinted as error:
        _end(0 if error.unread and error.whole else 2, _unprinted(error))
    except Stopped as error:
        _end_stopped(error)
    except MemoryError:
        _end(2, f"MemoryError: the memory that this process may use is too small. {MORE_MEMORY}")
    except ImportError as error:
        if _stopped:
            _end_stopped(_stopped[0])
        if isinstance(error, ModuleNotFoundError):
            raise
        _end(2, f"ImportError: a library can't be loaded: {_first_line(error)} {MORE_MEMORY} {MORE_FILES}")
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            _end(2, f"OSError: {error.strerror}. {MORE_FILES}")
        if error.errno == errno.ENOMEM or "shared object" in str(error):
            _end(2, f"OSError: {_first_line(error)} {MORE_MEMORY} {MORE_FILES}")
        raise


MORE_MEMORY = "Let it use more (ulimit -v), or run it on a machine with more."
MORE_FILES = "Let it open more files (ulimit -n 1024)."


def _unprinted(error: Unprinted) -> str:
    if error.unread and error.whole:
        return f"{error.whole}; not all that was said of it was read."
    whole = f" {error.whole}." if error.whole else ""
    return f"OutputError: standard output: can't be written: {error}.{whole}"


def _first_line(error: Exception) -> str:
    return f"{str(error).splitlines()[0][:300].rstrip('.')}."


def _end_stopped(stopped: Stopped) -> NoReturn:
    _end(stopped.code, f"{stopped}. Nothing is half-written; run the same command again.")


def _end(code: int, line: str) -> NoReturn:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)
    sys.exit(code)


@contextmanager
def _signals() -> Iterator[None]:
    """Each becomes Stopped, where it was not to be ignored (nohup); a second one ends the process at once."""
    before: dict[int, Any] = {}
    for name in ENDING:
        number = getattr(signal, name, None)
        if number is None or signal.getsignal(number) in (signal.SIG_IGN, None):
            continue
        with suppress(ValueError):  # signals belong to the main thread
            before[number] = signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_stopped: list[Stopped] = []
"""What a signal raised here: compiled modules that are imported just then turn it into an ImportError."""


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(number, signal.SIG_DFL)
    _stopped.append(Stopped(number))
    raise _stopped[-1]


def _hold_closed() -> None:
    """Let no file that is opened later get the number of a standard stream that was closed (>&-)."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


@contextmanager
def _streams() -> Iterator[None]:
    """Standard output fails as Unprinted, which typer and rich don't take for theirs; a full stderr hears no more."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _guarded(sys.stdout, deaf=False), _guarded(sys.stderr, deaf=True)
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before


def _guarded(stream: Any, *, deaf: bool) -> Any:
    if stream is None:  # Python's word for one that was closed
        return io.TextIOWrapper(io.BufferedWriter(_Guard(_Closed(), deaf=deaf)), encoding="utf-8")
    buffer = getattr(stream, "buffer", None)
    raw = getattr(buffer, "raw", buffer)
    if not isinstance(raw, io.FileIO):  # a test's
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Guard(raw, deaf=deaf)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Closed(io.RawIOBase):
    """In the place of a standard stream that is closed."""

    def write(self, data: Any) -> NoReturn:
        """Fail as the system does."""
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


class _Guard(io.RawIOBase):
    """A file whose failure is told once; what comes after it is dropped."""

    def __init__(self, raw: io.RawIOBase, *, deaf: bool) -> None:
        self._raw, self._deaf, self._failed = raw, deaf, False

    def write(self, data: Any) -> int | None:
        """Write some of it, or tell why not."""
        if self._failed:
            return len(data)
        try:
            return self._raw.write(data)
        except OSError as error:
            self._failed = True
            if self._deaf:
                return len(data)
            raise Unprinted(error) from error

    def writable(self) -> bool:
        """It is."""
        return True

    def fileno(self) -> int:
        """Of the file."""
        return self._raw.fileno()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._raw.isatty()
