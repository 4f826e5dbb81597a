"""What the options of `clean` choose."""

from __future__ import annotations

import pytest

from tflaunch.cli.clean import OLDER, CleanOptions, _criteria
from tflaunch.inputs.amounts import seconds
from tflaunch.protocol.errors import UsageError
from tflaunch.runs.clean import Criteria


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({}, Criteria(older_s=seconds(OLDER))),
        ({"keep_last": 0}, Criteria(keep_last=0)),  # that is all of them, not "nothing was said"
        ({"keep_last": 3}, Criteria(keep_last=3)),
        ({"max_size": "0GiB"}, Criteria(max_bytes=0)),
        ({"older": 0.0, "keep_last": 0}, Criteria(older_s=0.0, keep_last=0)),
    ],
)
def test_a_zero_is_a_choice(options: dict[str, object], chosen: Criteria) -> None:
    assert _criteria([], CleanOptions(**options)) == chosen  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"keep_last": 0}, {"older": 0.0}, {"max_size": "0GiB"}])
def test_a_run_and_a_choice_exclude_each_other(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="RUN says what to remove"):
        _criteria(["trainer-k3f9x2"], CleanOptions(**options))  # type: ignore[arg-type]


def test_an_amount_without_a_unit_is_told_with_its_option() -> None:
    with pytest.raises(UsageError, match="--max-size: '0' has no unit") as caught:
        _criteria([], CleanOptions(max_size="0"))
    assert caught.value.hint == "write it with its unit: --max-size 0GiB"
