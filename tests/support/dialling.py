"""A loop that answers dial checks."""

from __future__ import annotations

import time
from collections.abc import Collection

from tests.support.patience import until
from tflaunch.agent.net.name_lookup import NameLookup
from tflaunch.protocol.dialling import (
    Dialling,
)
from tflaunch.protocol.selector import Selector

KEY = "the key of this check"


class Loop:
    """The agent's loop, as far as the check needs one."""

    def __init__(self) -> None:
        self.selector = Selector()

    def turn(self) -> None:
        """Do all that there is to do: who waits for a turn must not wait for those of two dozen others."""
        ready = self.selector.select(0.02)
        while ready:
            for key, _ in ready:
                key.data()
            ready = self.selector.select(0)

    def dial(
        self,
        *targets: tuple[str, int, str],
        patience_s: float = 20.0,
        key: str = KEY,
        load: bool | Collection[int] = False,
    ) -> Dialling:
        """Dial them all, to the end."""
        dialling = Dialling(
            self.selector,
            key,
            [list(target) for target in targets],
            patience_s,
            load=load,
            look_up=NameLookup,
        )

        def done() -> bool:
            self.turn()
            return dialling.step(time.monotonic())

        until(done, "the results")
        dialling.close()
        return dialling
