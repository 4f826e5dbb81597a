"""Programs that hang."""

from __future__ import annotations

from tests.diagnosis import causes
from tests.diagnosis.causes import Cause
from tests.diagnosis.trainers import (
    MWMS_RUN,
    PS_RUN,
    PSS_RUN,
    asynchronous,
    coordinated,
    mirrored,
    pipeline,
    synchronous,
)

HANGS = (
    Cause(
        "t-async", causes.HANGS, "", asynchronous(), PS_RUN, proof=r"(?s)step 20 of worker 0.*step 20 of worker 1|step 20 of worker 1.*step 20 of worker 0", patience_s=1,
    ),
    Cause("t-sync", causes.HANGS, "", synchronous(), PS_RUN, proof=r"step 20 of worker 0", patience_s=1,),
    Cause("t-mwms", causes.HANGS, "", mirrored(), MWMS_RUN, proof=r"step 20 of worker 0", patience_s=1,),
    Cause("t-pipe", causes.HANGS, "", pipeline(), MWMS_RUN, proof=r"step 20 of worker 0", patience_s=1,),
    Cause("t-pss", causes.HANGS, "", coordinated(), PSS_RUN, proof=r"step 20,", patience_s=1,hosts=4),
)
