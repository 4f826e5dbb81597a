"""What a verb's block of reporting makes of its end."""

from __future__ import annotations

import pytest
import typer

from tflaunch.cli.reporting import reporting
from tflaunch.protocol.errors import EXIT_INTERRUPTED


class CtrlC:
    """A field in whose class Ctrl-C comes while Python makes that: before 3.12 it raises RuntimeError then."""

    def __set_name__(self, owner: type, name: str) -> None:
        raise KeyboardInterrupt


def test_ctrl_c_while_a_module_makes_a_class_is_ctrl_c() -> None:
    with pytest.raises(typer.Exit) as ended, reporting("stopped"):
        type("Made", (), {"field": CtrlC()})
    assert ended.value.exit_code == EXIT_INTERRUPTED


def test_another_error_of_that_type_is_raised() -> None:
    with pytest.raises(RuntimeError, match="ours"), reporting("stopped"):
        raise RuntimeError("ours")
