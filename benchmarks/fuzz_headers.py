"""Feed the header parser hostile bytes for a while: it reads or refuses them, and never fails otherwise.

    python benchmarks/fuzz_headers.py --seconds 600            # hypothesis
    python benchmarks/fuzz_headers.py --seconds 600 --atheris  # coverage-guided; needs atheris

Prints how many inputs were tried and how many of them were read; exits with 1 at the first that fails otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

VALID = save({"a": np.arange(3, dtype=np.float32), "b": np.ones((2, 2), np.float16)}, {"format": "pt"})


class Trial:
    """A file in memory, the parser, and the counts."""

    def __init__(self, seconds: float) -> None:
        from agentmerge.errors import SourceError
        from agentmerge.files.header import header_of

        self._parse, self._refused = header_of, SourceError
        self._fd = os.memfd_create("fuzz")
        self._end = time.monotonic() + seconds
        self.tried = self.read = 0

    def feed(self, content: bytes) -> None:
        """Parse one input; anything but a header or our own error is a failure."""
        from agentmerge.files.positional import ShortRead

        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, content, 0)
        self.tried += 1
        try:
            self._parse(self._fd, Path("fuzz.safetensors"))
        except (self._refused, ShortRead):  # source_errors turns a short read into a SourceError
            return
        self.read += 1

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self._end

    def report(self, engine: str) -> None:
        """Print the counts."""
        print(f"{engine}: {self.tried:,} inputs tried, {self.read:,} read, every other one refused by our own error")


def file_of(header: str | bytes, data: int) -> bytes:
    raw = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    return len(raw).to_bytes(8, "little") + raw + bytes(data)


def with_hypothesis(trial: Trial) -> None:
    """Random bytes, random JSON in the shape of a header, and damaged valid files."""
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    from agentmerge.tensors import DTYPES

    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([*DTYPES]),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
        max_leaves=16,
    )
    sizes = st.integers(0, 4) | st.integers()
    entries: Any = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from([*DTYPES, "F4"]) | values,
            "shape": st.lists(sizes, max_size=4) | values,
            "data_offsets": st.lists(sizes, min_size=2, max_size=2) | values,
        }
    )
    headers = st.dictionaries(st.text(max_size=5) | st.just("__metadata__"), entries | values, max_size=5)
    bytes_of = headers.flatmap(lambda h: st.integers(0, 40).map(lambda n: file_of(json.dumps(h), n)))
    damage = st.lists(st.tuples(st.integers(0, len(VALID)), st.integers(0, 4), st.binary(max_size=4)), min_size=1)
    texts = st.text(alphabet='{}[]":,0123456789eE.-+ntf\\u d\ud800', max_size=120).map(lambda t: file_of(t, 8))

    def damaged(changes: list[tuple[int, int, bytes]]) -> bytes:
        content = bytearray(VALID)
        for at, cut, put in changes:
            content[at : at + cut] = put
        return bytes(content)

    @settings(max_examples=20_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=300) | bytes_of | damage.map(damaged) | texts)
    def one(content: bytes) -> None:
        if not trial.over:
            trial.feed(content)

    while not trial.over:
        one()


def with_atheris(trial: Trial, corpus: Path) -> None:
    """Coverage-guided, from valid files on."""
    import atheris

    (corpus / "valid").write_bytes(VALID)
    (corpus / "empty").write_bytes(file_of("{}", 0))

    def one(content: bytes) -> None:
        if trial.over:
            trial.report("atheris")
            sys.stdout.flush()
            os._exit(0)
        trial.feed(content)

    atheris.Setup([sys.argv[0], str(corpus), "-max_len=4096", "-verbosity=0"], one)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--atheris", action="store_true")
    options = parser.parse_args()
    if options.atheris:
        import atheris

        with atheris.instrument_imports(include=["agentmerge.files.documents", "agentmerge.files.header", "json"]):
            import agentmerge.files.header  # noqa: F401
    trial = Trial(options.seconds)
    if options.atheris:
        with tempfile.TemporaryDirectory() as folder:
            with_atheris(trial, Path(folder))
    with_hypothesis(trial)
    trial.report("hypothesis")


if __name__ == "__main__":
    main()
