"""Sizes are read as people write them and written as people read them."""

from __future__ import annotations

import pytest

from agentmerge.cli.sizes import format_size, parse_size
from agentmerge.errors import RecipeError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("123", 123),
        ("1B", 1),
        ("4KB", 4_000),
        ("8MB", 8_000_000),
        ("5GB", 5_000_000_000),
        ("2TB", 2_000_000_000_000),
        ("1KiB", 1024),
        ("1GiB", 1 << 30),
        ("1.5MiB", 3 << 19),
        ("0.3KB", 300),
        (" 5 gb ", 5_000_000_000),
    ],
)
def test_a_size_is_read_in_decimal_and_binary_units(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "5XB", "-1", "5GB/s", "1e9", "5 G B", "five", "٣GB", "5G"])
def test_what_is_no_size_is_refused_with_an_example(text):
    with pytest.raises(RecipeError, match=r"is not a size\. Write a number and a unit, for example 5GB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["0", "0GB", "1.5", "0.0001KB"])
def test_a_size_is_a_whole_number_of_bytes_above_zero(text):
    with pytest.raises(RecipeError, match="a whole number of bytes, at least 1"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (988_097_824, "988.1 MB"),
        (999_999_999, "1 GB"),
        (5_000_000_000, "5 GB"),
        (4_000_000_000_000_000, "4000 TB"),
    ],
)
def test_a_size_is_written_in_the_largest_unit_that_leaves_at_least_one(size, text):
    assert format_size(size) == text


@pytest.mark.parametrize("size", [1, 1000, 2_500_000, 5_000_000_000])
def test_what_is_written_can_be_read_back(size):
    assert parse_size(format_size(size)) == size
