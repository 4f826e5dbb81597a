"""YARN, by Hadoop's own `yarn` command: with its configuration, its classes and its login."""

from __future__ import annotations

import os
import re
import shutil
import string
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tflaunch.engines.client_command import ClientFailed, answer, end
from tflaunch.protocol.errors import ConnectError, UsageError

TIMEOUT_S = 60.0  # for an answer: each is a JVM
SUBMITTED_S = 180.0  # for the application to be submitted, with its files
SAID = 500  # characters of what a command says
JAR = "hadoop-yarn-applications-distributedshell"
_FS = "org.apache.hadoop.fs.FsShell"
_SUBMITTED = re.compile(r"Submitted application (application_\d{1,20}_\d{1,10})")
# Files that are put where nodes read them are for their user alone, whatever the cluster's own mask is.
_OVERLAY = """\
<configuration xmlns:xi="http://www.w3.org/2001/XInclude">
{include}<property><name>fs.permissions.umask-mode</name><value>077</value></property>
</configuration>
"""


class YarnFailed(ClientFailed):
    """A command of YARN has failed, with these words of it."""


@dataclass(frozen=True)
class Yarn:
    """The cluster that a configuration leads to; "": the one that `yarn` has by itself."""

    conf: str = ""

    def env(self) -> dict[str, str]:
        """The environment of a `yarn` command."""
        return {**os.environ, **({"HADOOP_CONF_DIR": self.conf} if self.conf else {})}

    def run(self, *words: str, timeout_s: float = TIMEOUT_S) -> str:
        """What `yarn WORDS` prints.  Raises YarnFailed where it fails, ConnectError where there is none."""
        return self._answer(*words, timeout_s=timeout_s)

    def _answer(self, *words: str, cwd: str | None = None, timeout_s: float = TIMEOUT_S) -> str:
        there_is_one()
        name = f"yarn {words[0].rpartition('.')[2]}"
        return answer(
            ("yarn", *words), YarnFailed, said, name=name, env=self.env(), cwd=cwd, timeout_s=timeout_s
        )

    def classpath(self) -> list[str]:
        """Where its classes and its configuration are.  Raises YarnFailed, ConnectError."""
        return [each for each in self.run("classpath").strip().split(os.pathsep) if each]

    def jar(self, classpath: Sequence[str]) -> str:
        """The cluster's own distributed shell.  Raises ConnectError."""
        for entry in classpath:
            path = Path(entry)
            if path.name == "*":
                if found := sorted(path.parent.glob(f"{JAR}-*.jar")):
                    return str(found[-1])
            elif path.name.startswith(JAR) and path.suffix == ".jar":
                return entry
        raise ConnectError(
            f"yarn: there is no {JAR}-*.jar on the class path of this Hadoop",
            "it comes with Hadoop, though some distributions pack it apart; jar=PATH names one of the same version",
        )

    def submit(
        self,
        words: Sequence[str],
        overlay: Path,
        pause: Callable[[float], None],
    ) -> str:
        """Have the distributed shell's client submit an application; returns its id.

        `overlay` is a directory whose configuration goes before the cluster's.  The client is ended once the id is
        known: it would only watch.  Raises YarnFailed; whatever `pause` raises, once the client is ended.
        """
        until = time.monotonic() + SUBMITTED_S
        with (
            tempfile.TemporaryFile() as log,
            # It unpacks its jar, and would leave that behind when it is ended.
            private_directory() as temporary,
        ):
            client = subprocess.Popen(
                ["yarn", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self.env(), **client_env(overlay, temporary)},
                start_new_session=True,
            )
            try:
                while True:
                    ended = client.poll()
                    text = _read(log.fileno())
                    if found := _SUBMITTED.search(text):
                        return found[1]
                    if ended is not None:
                        raise YarnFailed(said(text) or f"its client ended with {ended}")
                    if time.monotonic() > until:
                        raise YarnFailed(
                            f"its client has submitted nothing within {SUBMITTED_S:g} s: {said(text)}"
                        )
                    pause(0.1)
            finally:
                end(client)
                client.wait()

    def listed(self, tag: str) -> dict[str, str]:
        """The applications with that tag that are not over: their names by their ids.  Raises YarnFailed."""
        states = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
        text = self.run("application", "-list", "-appTags", tag, "-appStates", states)
        rows = (line.split() for line in text.splitlines())
        return {row[0]: row[1] for row in rows if len(row) > 1 and row[0].startswith("application_")}

    def kill(self, applications: Sequence[str]) -> None:
        """End these applications, whatever they do.  Raises YarnFailed, ConnectError."""
        self.run("application", "-kill", *applications)

    def logs(self, application: str, file: str) -> str:
        """That log file of all containers that have it, while they run or after their end.  Raises YarnFailed."""
        return self.run("logs", "-applicationId", application, "-log_files", file)

    def remove(self, name: str) -> None:
        """Remove what lies in the user's home for nodes to read, below that name.  Raises YarnFailed, ConnectError."""
        self._in_file_system("-rm", "-r", "-f", "-skipTrash", name)

    def read(self, path: str) -> str:
        """A file below the user's home in the cluster's file system.  Raises YarnFailed, ConnectError."""
        return self._in_file_system("-cat", path)

    def _in_file_system(self, *words: str) -> str:
        # Names without a directory are below the home in HDFS, and below the working directory elsewhere.
        return self._answer(_FS, *words, cwd=str(Path.home()))


def private_directory() -> tempfile.TemporaryDirectory[str]:
    """A directory of this user alone, whose path parts no class path, no list of files and no options of Java's."""
    usual = tempfile.gettempdir()
    plain = not set(usual) & {":", ",", *string.whitespace}
    return tempfile.TemporaryDirectory(
        prefix="tflaunch-yarn-",
        dir=usual if plain else "/tmp",  # noqa: S108 - made for this user alone, by a name that nobody knows
        ignore_cleanup_errors=True,
    )


def client_env(overlay: Path, temporary: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the client has in its environment of ours, with what the user has there already."""
    options = [*environ.get("HADOOP_CLIENT_OPTS", "").split(), f"-Djava.io.tmpdir={temporary}"]
    classpath = filter(None, [str(overlay), environ.get("HADOOP_CLASSPATH", "")])
    return {
        "HADOOP_USER_CLASSPATH_FIRST": "yes",
        "HADOOP_CLASSPATH": os.pathsep.join(classpath),
        "HADOOP_CLIENT_OPTS": " ".join(options),
        "HADOOP_ROOT_LOGGER": "INFO,console",  # the id is in the log
    }


def here(environ: Mapping[str, str] = os.environ) -> Yarn:
    """The cluster that this environment means, in words that hold in any terminal."""
    conf = environ.get("HADOOP_CONF_DIR") or environ.get("YARN_CONF_DIR") or ""
    return Yarn(str(Path(conf).absolute()) if conf else "")


def there_is_one() -> None:
    """Raise ConnectError where there is no `yarn` here."""
    if shutil.which("yarn") is None:
        raise ConnectError(
            "yarn: there is no command yarn on the PATH",
            "start tflaunch on an edge node of the cluster; PATH must have the bin directory of its Hadoop",
        )


def configured(classpath: Sequence[str]) -> Path | None:
    """The directory of the cluster's configuration."""
    return next(
        (place for place in map(Path, classpath) if (place / "yarn-site.xml").is_file()),
        None,
    )


def config(place: Path | None) -> dict[str, str]:
    """What yarn-site.xml there says; with the values of other properties in place of `${NAME}`."""
    if place is None:
        return {}
    found = _site(place / "yarn-site.xml")

    def whole(value: str, depth: int = 5) -> str:
        named = re.sub(r"\$\{([\w.-]{1,200})\}", lambda name: found.get(name[1], name[0]), value)
        return value if named == value or not depth else whole(named, depth - 1)

    return {name: whole(value) for name, value in found.items()}


def wants_ticket(place: Path | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the cluster wants a Kerberos ticket, and this user has none: as far as `klist` knows.

    Hadoop's own commands would try to log in again and again, for minutes.
    """
    if place is None or environ.get("HADOOP_TOKEN_FILE_LOCATION"):
        return False
    if _site(place / "core-site.xml").get("hadoop.security.authentication", "").lower() != "kerberos":
        return False
    try:
        return (
            subprocess.run(["klist", "-s"], env=dict(environ), check=False, timeout=TIMEOUT_S).returncode == 1
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def write_overlay(overlay: Path, conf: Path | None) -> None:
    """Make a directory whose configuration keeps what is put into the file system from other users' eyes."""
    core = conf / "core-site.xml" if conf is not None else None
    include = f'<xi:include href="{core.as_uri()}"/>\n' if core is not None and core.exists() else ""
    overlay.mkdir(mode=0o700)
    (overlay / "core-site.xml").write_text(_OVERLAY.format(include=include))


def plain_word(value: str, key: str) -> str:
    """The same; raises UsageError for what YARN's scripts would not take as one plain word."""
    if not re.fullmatch(r"[\w@%+=:,./~-]+", value):
        raise UsageError(
            f"yarn: {key}: {value[:60]!r} cannot go through YARN's scripts",
            "letters, digits and @%+=:,./~- can",
        )
    return value


def said(text: str) -> str:
    """The words that say why, of what a command of Hadoop has written: without its log and Java's stack."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [
        line for line in lines if re.match(r"(Caused by: |Exception in thread |[\w.$]+Exception: )", line)
    ]
    faults = [line for line in lines if re.search(r" (?:ERROR|FATAL) ", line[:60])]
    chosen = (causes or faults or [line for line in lines if not line.startswith("at ")])[-1:]
    words = re.sub(r"^Caused by: |^Exception in thread \S+ ", "", " ".join(chosen))
    return re.sub(r"^(?:[\w.$]+(?:Exception|Error)(?:\([\w.$]+\))?: )+", "", words)[:SAID]


def _site(path: Path) -> dict[str, str]:
    try:
        return dict(_properties(path))
    except (OSError, ElementTree.ParseError):
        return {}


def _properties(path: Path) -> Iterator[tuple[str, str]]:
    for each in ElementTree.parse(path).getroot():  # noqa: S314 - the cluster's own, which its programs read, too
        if each.tag.endswith("}include"):
            included = Path(each.get("href", "").removeprefix("file://"))
            if included.is_absolute() and included.is_file():
                yield from _properties(included)
        name, value = each.findtext("name"), each.findtext("value")
        if name and value is not None:
            yield name.strip(), value.strip()


def _read(fd: int) -> str:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0).decode(errors="replace")
