"""A tflaunch with less patience, on a bed."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.bed import FarLauncher
from tests.support.impatient import IMPATIENT


class Impatient(FarLauncher):
    """Whose tflaunch takes 8 s for long."""

    def argv(self, verb: str, *words: str | bytes | Path) -> list[str | bytes | Path]:
        inside = self.bed.launcher.inside(cwd=self.code)
        program = IMPATIENT.format(wait_s=8.0)
        return [*inside, sys.executable, "-c", program, *super().argv(verb, *words)[len(inside) + 3 :]]
