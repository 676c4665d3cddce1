"""Sizes as people write them."""

import pytest

from agentmerge.cli.sizes import format_size, parse_size
from agentmerge.errors import RecipeError


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("4KB", 4000), ("1GiB", 2**30), ("1.5mb", 1_500_000), (" 8 MB ", 8_000_000), ("123", 123)],
)
def test_a_size_is_read_with_its_unit(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "5XB", "-1", "five", "0", "0GB", "0.0001KB"])
def test_what_is_no_size_of_at_least_a_byte_is_refused_with_the_text(text):
    with pytest.raises(RecipeError, match=repr(text)):
        parse_size(text)


@pytest.mark.parametrize(("size", "text"), [(0, "0B"), (999, "999B"), (988_097_824, "988.1MB"), (5 * 10**9, "5.0GB")])
def test_a_size_is_written_in_the_largest_unit_that_leaves_at_least_one(size, text):
    assert format_size(size) == text
