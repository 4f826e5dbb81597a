"""A tflaunch with less patience."""

from __future__ import annotations

# As tflaunch is, with less patience: hangs are told after seconds, not minutes.
IMPATIENT = """
from tflaunch.diagnosis import thresholds
thresholds.DEFAULTS.update(look_s=0.5, stopped_s=1.0, wait_s={wait_s}, dial_again_s=5.0)
from tflaunch.__main__ import command  # noqa: E402
command()
"""
