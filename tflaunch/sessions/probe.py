"""A host that lacks the probe's module (pynvml) gets it, and probes again; no command sees the first answer."""

from __future__ import annotations

from tflaunch.gpu_probe import MODULE
from tflaunch.protocol.wire import Message
from tflaunch.sessions import payload
from tflaunch.sessions.session import Session


def probed(session: Session, message: Message) -> Message | None:
    """The answer to a probe; None: the host lacks the module, which is sent to it now, and it will answer again.

    A host that lacks it still, once it has it, has `failed`.
    """
    if message.type != "facts" or not message["lacks"]:
        return message
    if session.module_sent:
        return Message("failed", {"reason": f"the module {MODULE} does not run there"})
    session.module_sent = True
    session.send("module", payload.packed_module(), name=MODULE)
    return None
