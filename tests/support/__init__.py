"""What the tests have in common: launchers, hosts, test beds, and what they are made of."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]  # of the project
