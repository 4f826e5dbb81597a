"""Times as people write them."""

from __future__ import annotations

import pytest

from tflaunch.inputs.amounts import seconds
from tflaunch.text.times import written


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("30s", 30),
        ("10m", 600),
        ("2h", 7200),
        ("1d", 86400),
        ("1.5h", 5400),
        ("2W", 1209600),
        ("1 h", 3600),
        ("90", 90),
        ("0", 0),
        (".25", 0.25),
        ("10.", 10),
    ],
)
def test_what_is_written(text: str, meant: float) -> None:
    assert seconds(text) == meant


@pytest.mark.parametrize(
    "text", ["", ".", "h", "-1", "-1s", "1y", "forever", "1h30m", "inf", "nan", "1e9", "1٣", "1.2.3", "0x10"]
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        seconds(text)


def test_no_system_waits_for_so_long() -> None:
    assert seconds("3650d")
    with pytest.raises(ValueError, match="is longer than ten years"):
        seconds("3651d")


@pytest.mark.parametrize("text", ["0s", "0.5s", "10s", "90s", "5m", "36h", "1d", "2w"])
def test_it_is_written_as_it_is_read(text: str) -> None:
    assert written(seconds(text)) == text
