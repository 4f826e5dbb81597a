"""How OpenSSH would reach a host, for `tflaunch.remote`: its configuration, keys, host keys, log-in and transport.

It is there before paramiko and fabric: both load invoke, and that a PyYAML of its own and, for other people's tests,
`unittest.mock`.  asyncio and ssl would come with it: a sixth of the time that a command takes to load.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import yaml


class _Deferred(ModuleType):
    """`unittest.mock` for whoever takes its Mock and may use it later."""

    @staticmethod
    def Mock(*arguments: Any, **named: Any) -> Any:
        from unittest.mock import Mock

        return Mock(*arguments, **named)


def _load_invoke() -> None:
    instead = {"unittest.mock": _Deferred("unittest.mock"), "invoke.vendor.yaml": yaml}
    instead = {name: module for name, module in instead.items() if name not in sys.modules}
    sys.modules.update(instead)
    try:
        import invoke  # noqa: F401
    except Exception:  # this one takes more of them: whoever needs it loads it as it is
        for name in [name for name in sys.modules if name.partition(".")[0] == "invoke"]:
            del sys.modules[name]
    finally:
        for name in instead:
            sys.modules.pop(name, None)


_load_invoke()
