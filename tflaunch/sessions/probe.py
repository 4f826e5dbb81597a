"""A host that lacks the probe's module (pynvml) gets it, and probes again; no command sees the first answer."""

from __future__ import annotations

from tflaunch.gpu_probe import MODULE
from tflaunch.protocol.wire import Message
from tflaunch.sessions import payload
from tflaunch.sessions.session import Session


def probed(session: Session, message: Message) -> Message | None:
    """The answer to a probe, or None if the host lacks the module: it is sent now, and the host answers again.

    If the host still lacks the module after it was sent, the answer is a message `failed`.
    """
    if message.type != "facts" or not message["lacks"]:
        return message
    if session.module_sent:
        return Message("failed", {"reason": f"the module {MODULE} does not run there"})
    session.module_sent = True
    session.send("module", payload.packed_module(), name=MODULE)
    return None
