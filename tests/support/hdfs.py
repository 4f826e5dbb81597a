"""A real HDFS in a bed: its NameNode on the launcher's machine, its DataNode on a host."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.bed import Bed
from tests.support.bed.machines import BedHost
from tests.support.patience import until
from tests.support.yarn import LOG4J, YARN_S, start_daemon, write_properties

PORT = 9820  # of the NameNode
NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
FS = "import fsspec, json, sys; fs = fsspec.filesystem('hdfs'); "


class Hdfs:
    """One for each bed; all that it starts ends with it.  `conf` is the configuration of its users."""

    def __init__(self, bed: Bed, host: BedHost, directory: Path) -> None:
        self.bed, self.directory, self.conf = bed, directory, directory / "conf"
        at = bed.launcher.address
        self.core = {"fs.defaultFS": f"hdfs://{at}:{PORT}"}  # all that its users must know
        daemons = directory / "daemons"
        # Daemons want the directories of their web pages, which are in no jar.
        for place in (self.conf, daemons / "webapps/hdfs", daemons / "webapps/datanode"):
            place.mkdir(parents=True)
        for place in (self.conf, daemons):
            (place / "log4j.properties").write_text(LOG4J)
            write_properties(place / "core-site.xml", self.core)
        here = {
            "dfs.replication": "1",
            "dfs.namenode.name.dir": f"file://{directory}/names",
            "dfs.namenode.http-address": f"{at}:0",
            "dfs.datanode.data.dir": "/var/tmp/hdfs",
            "dfs.datanode.address": f"{host.address}:0",
            "dfs.datanode.ipc.address": f"{host.address}:0",
            "dfs.datanode.http.address": f"{host.address}:0",
        }
        write_properties(daemons / "hdfs-site.xml", here)
        self._log = directory / "datanode.log"
        log = directory / "namenode.log"
        temporary = directory / "tmp"  # the launcher's machine has none of its own
        temporary.mkdir()
        options = f"-Xmx128m -Djava.io.tmpdir={temporary}"
        format_it = start_daemon(
            bed.launcher, NAME_NODE, daemons, options, directory / "format.log", "-format", "-nonInteractive"
        )
        assert format_it.wait(YARN_S) == 0, (directory / "format.log").read_text()
        self._started = [
            start_daemon(bed.launcher, NAME_NODE, daemons, options, log),
            start_daemon(host, DATA_NODE, daemons, "-Xmx128m", self._log),
        ]

    def wait_until_up(self) -> None:
        """Until it takes data."""
        until(lambda: "successfully registered" in self._log.read_text(), "HDFS has its DataNode", YARN_S)

    def ask(self, expression: str, *words: str) -> Any:
        """The value of an expression about `fs`, which is this HDFS as its superuser, and `sys.argv`."""
        program = f"{FS}json.dump({expression}, sys.stdout)"
        argv = self.bed.launcher.inside(sys.executable, "-c", program, *words)
        env = {**os.environ, "HADOOP_CONF_DIR": str(self.conf)}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def modes(self, directory: str) -> dict[str, str]:
        """The permissions of all that is below a directory, by path: `{"/user/ada/train": "755"}`."""
        found = self.ask("fs.find(sys.argv[1], withdirs=True, detail=True)", directory)
        return {str(path): f"{each['permission']:o}" for path, each in found.items()}

    def close(self) -> None:
        for each in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()
