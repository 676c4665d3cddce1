"""A draft is what was kept, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentmerge.files.drafts import DRAFTS, Drafts, Slot

if TYPE_CHECKING:
    from pathlib import Path

SLOTS = {"a": Slot(600, 1), "experts": Slot(4096 * 3, 3), "empty": Slot(0, 1)}


def numbers(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / DRAFTS


def test_what_was_kept_is_taken_and_survives_the_process(path: Path) -> None:
    with Drafts(path, SLOTS) as drafts:
        assert drafts.take("a", 0, 600) is None
        drafts.keep("a", 0, numbers(600))
        drafts.keep("experts", 4096, numbers(4096, 1))
        drafts.keep("unknown", 0, numbers(5))
    with Drafts(path, SLOTS) as drafts:
        np.testing.assert_array_equal(drafts.take("a", 0, 600), numbers(600))
        np.testing.assert_array_equal(drafts.take("experts", 4096, 4096), numbers(4096, 1))
        assert drafts.take("experts", 0, 4096) is None
        assert drafts.take("experts", 4096, 2 * 4096) is None
        assert drafts.take("unknown", 0, 5) is None


def test_zeros_that_were_never_written_are_no_draft(path: Path) -> None:
    with Drafts(path, SLOTS) as drafts:
        assert drafts.take("a", 0, 600) is None
        drafts.keep("a", 0, np.zeros(600, np.float32))
        np.testing.assert_array_equal(drafts.take("a", 0, 600), np.zeros(600))


@pytest.mark.parametrize("at", [0, 4 * 599 + 3, 4 * 600])
def test_a_damaged_draft_is_none(path: Path, at: int) -> None:
    with Drafts(path, SLOTS) as drafts:
        drafts.keep("a", 0, numbers(600))
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with Drafts(path, SLOTS) as drafts:
        assert drafts.take("a", 0, 600) is None


def test_a_file_that_was_cut_is_made_whole_again_without_its_end(path: Path) -> None:
    with Drafts(path, SLOTS) as drafts:
        drafts.keep("a", 0, numbers(600))
        drafts.keep("experts", 0, numbers(4096))
    path.write_bytes(path.read_bytes()[:5000])
    with Drafts(path, SLOTS) as drafts:
        assert drafts.take("a", 0, 600) is not None
        assert drafts.take("experts", 0, 4096) is None


def test_what_was_kept_for_another_name_at_the_same_place_is_none(path: Path) -> None:
    """The names may differ between two runs: how dear a matrix is depends on the processors."""
    with Drafts(path, SLOTS) as drafts:
        drafts.keep("a", 0, numbers(600))
    with Drafts(path, {"b": Slot(600, 1)}) as drafts:
        assert drafts.take("b", 0, 600) is None
