"""Shipped code on its way from the launcher into this host's store: what the store lacks is sent, piece by piece."""

from tflaunch.agent.host.rundir import HostError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Optional, Set

    from tflaunch.agent.files.code_store import CodeStore
    from tflaunch.agent.host.recipient import Recipient
    from tflaunch.agent.host.rundir import RunDirectory
    from tflaunch.protocol.wire import Message


class CodeUpload:
    """Takes the messages `code`, `manifest` and `blob`."""

    def __init__(self, directory: "RunDirectory") -> None:
        self._directory = directory
        self._store = None  # type: Optional[CodeStore]
        self._damaged = set()  # type: Set[str]  # digests damaged in the store, which the launcher sends again

    def code(self, viewer: "Recipient", message: "Message") -> None:
        from tflaunch.agent.files.code_store import CodeStore

        self.close()
        self._store = CodeStore(self._directory.parent, message["digest"], self._damaged)
        if self._store.here:
            viewer.send("code", have=True, lacks=[])
        elif message.body:
            self._compare(viewer, message.body, last=True)
        else:
            viewer.send("code", have=False, lacks=None)

    def manifest(self, viewer: "Recipient", message: "Message") -> None:
        self._compare(viewer, message.body, message["last"])

    def blob(self, viewer: "Recipient", message: "Message") -> None:
        self._opened().add(message.body, message["packed"], message["last"])
        if message["last"]:
            viewer.send("code", have=True, lacks=[])

    def _compare(self, viewer: "Recipient", manifest: bytes, last: bool) -> None:
        lacks = self._opened().lacks(manifest, last)
        if lacks is not None:
            viewer.send("code", have=not lacks, lacks=lacks)

    def _opened(self) -> "CodeStore":
        if self._store is None:
            raise HostError("the launcher sent code without its digest")
        return self._store

    def report_damage(self, viewer: "Recipient", damaged: "Dict[str, str]") -> None:
        """Report `damaged` (digest -> reason) in the store's copy to the launcher, which sends it again, once."""
        again = self._damaged.isdisjoint(
            damaged
        )  # what is still damaged after it was sent again will stay so
        self._damaged.update(damaged)
        viewer.send(
            "failed",
            reason="the shipped code in this host's store is damaged: %s" % next(iter(damaged.values())),
            hint="start the run again; is that disk sound?",
            again=again,
        )

    def close(self) -> None:
        """Remove what has come only in part."""
        if self._store is not None:
            self._store.discard()
