"""A tflaunch with less patience."""

from __future__ import annotations

# As tflaunch is, with less patience: hangs are told after seconds, not minutes.
IMPATIENT = """
import sys
from tflaunch.diagnosis import hangs
hangs.LOOK_S, hangs.STOPPED_S, hangs.WAIT_S, hangs.DIAL_AGAIN_S = 0.5, 1.0, {wait_s}, 5.0
from tflaunch.cli import main  # noqa: E402
sys.exit(main())
"""
