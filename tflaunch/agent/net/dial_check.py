"""The dial check as this host sees it: it calls the other hosts, and answers on the ports of its tasks.

See tflaunch.protocol.dialling; what it needs is imported only when a launcher asks for the check.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, List, Optional, Tuple

    from tflaunch.agent.host.recipient import Recipient
    from tflaunch.agent.net.dial_answering import Answering
    from tflaunch.agent.net.throughput import Push
    from tflaunch.protocol.dialling import Dialling
    from tflaunch.protocol.selector import Selector
    from tflaunch.protocol.wire import Message

DIALS = 8  # of a coordinator on another host; each rule has one under way


class DialCheck:
    """Both ends of the check on this host, until the tasks are released."""

    def __init__(self, selector: "Selector", host: str, viewers: "Collection[Recipient]") -> None:
        self._selector = selector
        self._host = host
        self._viewers = viewers
        self._answering = None  # type: Optional[Answering]
        self._dialling = []  # type: List[Tuple[Recipient, Dialling, Dict[str, Any]]]
        self._pushing = []  # type: List[Tuple[Recipient, Push]]

    def answer(self, key: str, ports: "List[int]") -> None:
        """Answer every caller on these ports; raises OSError."""
        if self._answering is None:
            from tflaunch.agent.net.dial_answering import Answering

            self._answering = Answering(self._selector, key, self._host)
            self._answering.listen(ports)

    def dial(self, viewer: "Recipient", message: "Message") -> None:
        """Begin the calls that a message `dial` asks for; `dialled` answers it later."""
        from tflaunch.agent.net.name_lookup import NameLookup
        from tflaunch.protocol.dialling import Dialling

        dialling = Dialling(
            self._selector,
            message["key"],
            message["targets"],
            message["patience_s"],
            load=message.fields.get("load", False),
            look_up=NameLookup,
            compared=message.fields.get("names", ()),
        )
        self._dialling.append((viewer, dialling, message.fields))

    def busy(self, viewer: "Recipient") -> bool:
        """Whether as many of its dials are under way as anyone may need at once."""
        return sum(each is viewer for each, _, _ in self._dialling) >= DIALS

    def push(self, viewer: "Recipient", message: "Message") -> None:
        """Begin to send as a message `push` asks for; `pushed` answers it later."""
        from tflaunch.agent.net.throughput import Push

        self._pushing.append(
            (viewer, Push(self._selector, message["key"], message["target"], message["seconds"]))
        )

    def tick(self, now: float) -> None:
        """Go on with the calls; send the results that are complete."""
        for viewer, dialling, asked in list(self._dialling):
            if dialling.step(now):
                self._dialling.remove((viewer, dialling, asked))
                compared = {"names": dialling.digest} if "names" in asked else {}  # type: Dict[str, Any]
                if viewer in self._viewers:
                    viewer.send(
                        "dialled",
                        results=dialling.results,
                        addresses=dialling.addresses,
                        ways=dialling.ways,
                        asker=asked.get("asker", ""),
                        **compared,
                    )

        for viewer, push in list(self._pushing):
            if push.step(now):
                self._pushing.remove((viewer, push))
                if viewer in self._viewers:
                    viewer.send("pushed", **push.result)

    def stop(self) -> None:
        """Hang up, and no longer listen."""
        if self._answering is not None:
            self._answering.close()
        for _, dialling, _ in self._dialling:
            dialling.close()
        for _, push in self._pushing:
            push.close()
        self._dialling, self._pushing = [], []
