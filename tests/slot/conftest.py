"""Fixtures of the tests with slot holders."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_over_pipes import interpreters
from tests.support.slots import Held

Hold = Callable[..., Held]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that all can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture
def hold(place: Path) -> Iterator[Hold]:
    """Starts slot holders, with these settings; they end with the test, and leave nothing."""
    held: list[Held] = []

    def start(*arguments: Any, **settings: Any) -> Held:
        held.append(Held(settings.pop("directory", place), *arguments, **settings))
        return held[-1]

    with contextlib.ExitStack() as ends:
        for_each = held
        ends.callback(lambda: [each.close() for each in for_each])
        yield start


@pytest.fixture(params=interpreters(), ids=lambda python: "-".join(Path(python).parts[-3:-2]))
def every(request: pytest.FixtureRequest, hold: Hold) -> Hold:
    """The same with each Python there is."""
    return lambda **settings: hold(request.param, **settings)
