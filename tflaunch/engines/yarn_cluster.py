"""A cluster of YARN, as `yarn` on this machine knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tflaunch.engines.yarn_applications import jar_path
from tflaunch.engines.yarn_commands import Yarn, YarnFailed, config, configured, here, wants_ticket
from tflaunch.engines.yarn_manager import Manager, YarnNode
from tflaunch.engines.yarn_words import mends
from tflaunch.protocol.errors import ConnectError


@dataclass(frozen=True)
class YarnCluster:
    """A cluster; any thread may ask."""

    yarn: Yarn
    conf: Path | None
    jar: str
    manager: Manager

    @classmethod
    def here(cls, settings: Mapping[str, str]) -> YarnCluster:
        """The one that the user's environment means.  Raises ConnectError."""
        yarn = here()
        try:
            classpath = yarn.classpath()
        except YarnFailed as failed:
            raise ConnectError(
                f"yarn: {failed}", mends(str(failed), "does yarn classpath work here?")
            ) from None
        jar = jar_path(settings["jar"]) if "jar" in settings else yarn.jar(classpath)
        conf = configured(classpath)
        if wants_ticket(conf):
            raise ConnectError(
                "yarn: this cluster wants a Kerberos ticket, and you have none that is valid",
                "kinit gets you one",
            )
        return cls(yarn, conf, jar, Manager(yarn, config(conf)))

    def nodes(self) -> list[YarnNode]:
        """The nodes that run.  Raises ConnectError."""
        try:
            found = self.manager.nodes()
        except YarnFailed as failed:
            raise ConnectError(
                f"yarn: the cluster cannot be asked: {failed}",
                mends(str(failed), "does yarn node -list work here? is there a ticket (klist)?"),
            ) from None
        if not found:
            raise ConnectError(
                "yarn: no node of the cluster runs", "yarn node -list -all shows those that do not"
            )
        return found
