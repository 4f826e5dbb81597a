"""A tflaunch with less patience."""

from __future__ import annotations

# As tflaunch is, with less patience: hangs are told after seconds, not minutes.
IMPATIENT = """
import sys
from tflaunch.diagnosis import hangs as diagnose
diagnose.LOOK_S, diagnose.STOPPED_S, diagnose.WAIT_S, diagnose.DIAL_AGAIN_S = 0.5, 1.0, {wait_s}, 5.0
from tflaunch.cli import main
sys.exit(main())
"""
