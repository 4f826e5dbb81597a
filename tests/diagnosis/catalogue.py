"""All causes."""

from __future__ import annotations

from tests.diagnosis.ends import ENDS
from tests.diagnosis.hangs import HANGS
from tests.diagnosis.healthy import HEALTHY
from tests.diagnosis.networks import NETWORKS
from tests.diagnosis.slow import SLOW

CAUSES = (*HANGS, *NETWORKS, *ENDS, *SLOW, *HEALTHY)
