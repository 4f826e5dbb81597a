"""Amounts of memory as people write them."""

from __future__ import annotations

import pytest

from tests.support.gpus import GIB
from tflaunch.inputs.amounts import size
from tflaunch.protocol.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("40GiB", 40 * GIB),
        ("40g", 40 * GIB),
        ("1.5 TiB", 1536 * GIB),
        ("40GB", 40 * 10**9),
        ("512MiB", GIB // 2),
    ],
)
def test_amounts_of_memory(text: str, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize("text", ["40", "", "GiB", "-1GiB", "40 bytes", "1e3G", "40GiBB"])
def test_what_is_no_amount_of_memory(text: str) -> None:
    with pytest.raises(UsageError):
        size(text)


def test_a_number_alone_lacks_a_unit_and_the_option_is_named() -> None:
    with pytest.raises(UsageError) as caught:
        size("40", option="--min-free")
    assert caught.value.message == "--min-free: '40' has no unit"
    assert caught.value.hint == "write it with its unit: --min-free 40GiB"
    with pytest.raises(UsageError, match=r"^'lots' is not an amount of memory"):
        size("lots")
