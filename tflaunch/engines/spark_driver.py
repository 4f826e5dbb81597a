"""The Spark application that slots are of: the caller's, if this process has one, or one of tflaunch's own.

pyspark is imported when a driver is wanted, not before.
"""

from __future__ import annotations

import base64
import os
import platform
import re
import shutil
import tempfile
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from tflaunch.engines.spark_master import SlotSize, SparkMaster, minor
from tflaunch.protocol.errors import ConnectError, PlanError, TflaunchError, UsageError
from tflaunch.text.extras import beside_tflaunch
from tflaunch.text.numbers import counted

if TYPE_CHECKING:
    from pyspark import SparkContext

# What a barrier stage needs; a session that exists must have the first ones, too.
NEEDED = {"spark.dynamicAllocation.enabled": "false"}
OWN = {
    **NEEDED,
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "600",
    "spark.ui.showConsoleProgress": "false",
}
GPU = "resource.gpu.amount"
LOG_BYTES = 65536  # of the end of the JVM's log that is looked at
_MASTER = re.compile(r"spark://(?P<hosts>[^,]+(?:,[^,]+)*)")


class OwnApplication:
    """The application of tflaunch's own in this process, which has room for one: runs at the same time share it."""

    lock = threading.RLock()
    context: ClassVar[SparkContext | None] = None
    users: ClassVar[int] = 0


class SparkDriver:
    """A Spark application in this process.  Its methods wait for the JVM: they are for a thread of their own."""

    def __init__(self, master: str, name: str, count: int, size: SlotSize, conf: Mapping[str, str]) -> None:
        self.context: SparkContext | None = None
        self.own = False  # it is stopped when its slots are given back
        self._master, self._name, self._count, self._size = _url(master), name, count, size
        self._conf = dict(conf)
        self._abandoned = threading.Event()

    def start(self) -> None:
        """Find the caller's application, or start one.  Raises UsageError, ConnectError."""
        with OwnApplication.lock:
            self._start(_pyspark())
        if self._abandoned.is_set():
            self.stop()

    def _start(self, pyspark: Any) -> None:
        self._gateway_lives(pyspark)
        active = pyspark.SparkContext._active_spark_context
        if active is not None:
            self._check(active)
            self.context = active
            if active is OwnApplication.context:
                self.own = True
                OwnApplication.users += 1
            return
        if not self._master:
            raise UsageError(
                "spark: which master? this process has no Spark application",
                "name it as spark-submit does: spark://HOST:7077,4 or spark:yarn,4 or spark:local[4],4",
            )
        conf = pyspark.SparkConf(loadDefaults=False)
        for key, value in self._settings().items():
            conf.set(key, value)
        self.context = pyspark.SparkContext(conf=conf, gateway=self._gateway(pyspark))
        self.own = True
        OwnApplication.context, OwnApplication.users = self.context, 1
        self.context.setLogLevel("ERROR")

    @staticmethod
    def _gateway_lives(pyspark: Any) -> None:
        """Forget a JVM of this process that has ended: pyspark itself would go on asking it."""
        process = getattr(pyspark.SparkContext._gateway, "proc", None)
        if process is not None and process.poll() is not None:
            with pyspark.SparkContext._lock:
                pyspark.SparkContext._gateway = pyspark.SparkContext._jvm = None
                pyspark.SparkContext._active_spark_context = None

    def room(self) -> tuple[int, int] | None:
        """How many slots of this size the workers of a standalone master have, (in all, not in use); None: not told.

        Raises ConnectError where the master does not answer, PlanError where it is of another version.
        """
        hosts = _MASTER.fullmatch(self._master)
        if hosts is None or self.context is not None:
            return None
        pyspark = _pyspark()
        with OwnApplication.lock:
            self._gateway_lives(pyspark)
            if pyspark.SparkContext._active_spark_context is not None:
                return None
            jvm = self._gateway(pyspark).jvm
        conf = jvm.org.apache.spark.SparkConf(True)
        for key, value in self._settings().items():
            conf.set(key, value)
        here = str(pyspark.__version__)
        first: Exception | None = None
        for address in hosts["hosts"].split(","):
            if not address.rpartition(":")[2].isdigit():
                raise UsageError(
                    f"{self._master}: {address} has no port", "as spark-submit: spark://HOST:7077,4"
                )
            master = SparkMaster(jvm, conf, address)
            try:
                found = master.room(self._size)
            except Exception as error:  # py4j's, of many kinds
                found, first = None, first or error
            there = master.version()
            # Within a minor version, their messages differ now and then.
            unread = found is None and there != here and "InvalidClass" in str(first)
            if there and (minor(there) != minor(here) or unread):
                raise other_version(there, here)
            if found is not None:
                return found
        raise ConnectError(
            f"the Spark master {self._master} does not answer: {said(first)}",
            f"is it up, and is pyspark here of the same version as that of the cluster? it is {here} here",
        )

    def slots(self) -> int:
        """How many tasks may run at a time: a barrier stage of more is refused.

        Raises ConnectError where Spark has ended the application, as it does when nobody registers it.
        """
        assert self.context is not None  # noqa: S101 - `start` was called
        scala = self.context._jsc.sc()
        if scala.isStopped():
            raise ConnectError(
                f"spark: {self.context.master} has taken no application from here: Spark has ended it",
                "the master's log may say why",
            )
        return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))

    def most(self) -> int | None:
        """How many tasks may ever run at a time in this application, as far as its settings say; None: they do not."""
        assert self.context is not None  # noqa: S101
        master, conf = str(self.context.master), self.context.getConf()
        each = int(conf.get("spark.task.cpus", "1") or 1)
        if re.match(r"local(\[|$)", master):
            return self.slots()
        if cluster := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]", master):
            return int(cluster[1]) * (int(cluster[2]) // each)
        cores = int(conf.get("spark.executor.cores", "0") or 0)
        if most := conf.get("spark.cores.max") if _MASTER.fullmatch(master) else None:
            return int(most) // each
        if (executors := conf.get("spark.executor.instances")) and cores:
            return int(executors) * (cores // each)
        return None

    @property
    def id(self) -> str:
        """The application's, as Spark's pages show it."""
        assert self.context is not None  # noqa: S101
        return str(self.context.applicationId)

    def environment(self) -> dict[str, str]:
        """What tasks learn of the application: the file system of paths without a scheme, as Hadoop has it."""
        assert self.context is not None  # noqa: S101
        default = self.context._jsc.hadoopConfiguration().get("fs.defaultFS")
        return {"TFLAUNCH_DEFAULT_FS": str(default)} if default else {}

    def hadoop(self) -> dict[str, Any]:
        """What tasks need for Hadoop's client library: `tokens`, the session's delegation tokens as Hadoop stores them
        (base64; "": it has none), and `classes`: whether paths are mostly of a Hadoop file system.
        """
        assert self.context is not None  # noqa: S101
        jvm: Any = self.context._jvm
        credentials = jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().getCredentials()
        tokens = b""
        if credentials.numberOfTokens():
            stored = jvm.java.io.ByteArrayOutputStream()
            credentials.writeTokenStorageToStream(jvm.java.io.DataOutputStream(stored))
            tokens = bytes(stored.toByteArray())
        default = self.environment().get("TFLAUNCH_DEFAULT_FS", "file:")
        return {"tokens": base64.b64encode(tokens).decode(), "classes": not default.startswith("file:")}

    def abandon(self) -> None:
        """Nobody waits for `start` any more: what it makes is stopped at once."""
        self._abandoned.set()
        if self.context is not None:
            self.stop()

    def stop(self) -> None:
        """End the application, if it is tflaunch's own and no other run is in it; idempotent."""
        with OwnApplication.lock:
            if not self.own or self.context is None:
                return
            self.own = False
            OwnApplication.users -= 1
            if not OwnApplication.users:
                OwnApplication.context = None
                self.context.stop()

    def _settings(self) -> dict[str, str]:
        size = self._size
        settings = {
            "spark.master": self._master,
            "spark.app.name": self._name,
            "spark.cores.max": str(self._count * size.cores),
            "spark.executor.instances": str(self._count),
            "spark.executor.cores": str(size.cores),
            "spark.task.cpus": str(size.cores),
            **({"spark.executor.memory": size.memory} if size.memory else {}),
        }
        if size.gpus:
            settings.update({f"spark.executor.{GPU}": str(size.gpus), f"spark.task.{GPU}": str(size.gpus)})
        settings.update(self._conf)
        for key, value in OWN.items():
            if settings.get(key, value) != value:
                raise UsageError(
                    f"spark: {key}={settings[key]}: slots come all together, in a barrier stage, which wants {value}",
                    "leave it out",
                )
        return {**settings, **OWN}

    def _check(self, context: SparkContext) -> None:
        """Raise UsageError for an application of the caller's in which slots cannot be held."""
        conf = context.getConf()
        if self._master and self._master != context.master:
            raise UsageError(
                f"spark: this process has a Spark application on {context.master}, and slots of {self._master} are "
                "wanted",
                "leave the master out, or stop that application",
            )
        for key, value in NEEDED.items():
            if conf.get(key, value) != value:
                raise UsageError(
                    f"spark: the session has {key}={conf.get(key)}, and a barrier stage wants {value}",
                    f"make the session with .config('{key}', '{value}')",
                )
        has, wants = float(conf.get(f"spark.task.{GPU}", "0") or 0), self._size.gpus
        if wants and has != wants:
            raise UsageError(
                f"spark: slots of {counted(wants, 'GPU')} are wanted, and the session gives each task {has:g}",
                f"make the session with spark.executor.{GPU} and spark.task.{GPU} set to {wants}, or ask for "
                "slots without GPUs",
            )

    def _gateway(self, pyspark: Any) -> Any:
        """The JVM of this process; what it prints goes to a file, for the screen is the run's."""
        if pyspark.SparkContext._gateway is not None:
            return pyspark.SparkContext._gateway
        if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
            raise UsageError(
                "spark: there is no Java here, and a Spark driver needs it",
                "install Java 17, for example: apt-get install default-jre-headless; or set JAVA_HOME",
            )
        from pyspark.java_gateway import launch_gateway

        with tempfile.TemporaryFile() as log:
            own_session = {"stdout": log, "stderr": log, "start_new_session": True}
            try:
                gateway = launch_gateway(popen_kwargs=own_session)
            except Exception as error:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
                words = last_words(log.read().decode(errors="replace"))
                raise UsageError(
                    f"spark: the driver's JVM has not started: {words or said(error)}",
                    "try it by hand: spark-submit --version; is it a Java that this Spark can use?",
                ) from None
        with pyspark.SparkContext._lock:
            pyspark.SparkContext._gateway, pyspark.SparkContext._jvm = gateway, gateway.jvm
        return gateway


def said(error: BaseException | None) -> str:
    """What an exception of Spark, py4j or the JVM says, in one line and without its trace."""
    if isinstance(error, TflaunchError):
        return error.message
    cause = getattr(error, "java_exception", None)
    text = str(error)
    if cause is not None:
        while cause.getCause() is not None:
            cause = cause.getCause()
        text = f"{cause.getClass().getSimpleName()}: {cause.getMessage()}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:400] if lines else type(error).__name__


def never(error: BaseException) -> TflaunchError | None:
    """The error for the user where a stage has failed for a reason that another try does not change; else None."""
    text = str(error)
    if "Python in worker has different version" in text or "PYTHON_VERSION_MISMATCH" in text:
        theirs = re.search(r"in worker has different version:? \(?([\d.]{1,12})", text)
        between = f": {theirs[1]} there, {platform.python_version()} here" if theirs else ""
        return PlanError(
            f"spark: the executors' Python is of another version than the driver's{between}",
            "set PYSPARK_PYTHON to a Python of this version that the executors have, or run tflaunch by one of theirs",
        )
    if "No module named 'pyarrow'" in text:
        return PlanError(
            "spark: the executors' Python has no pyarrow, by which rows come to tasks",
            "put pyarrow into it, or set PYSPARK_PYTHON to a Python that has it",
        )
    own = re.search(r"tflaunch: ([^\n]+)", text)
    if own:
        dialled = "can the executors dial this machine? see spark.driver.host"
        hint = (
            dialled
            if "cannot be reached" in own[1]
            else "the log of that executor, in Spark's pages, may have more"
        )
        return ConnectError(f"spark: {own[1]}", hint)
    return None


def other_version(there: str, here: str) -> PlanError:
    """The error for the user of a pyspark that is not of the cluster's version."""
    return PlanError(
        f"spark: the cluster's Spark is {there}, and pyspark here is {here}: they must be of one version",
        f"put pyspark=={there} beside tflaunch, in place of {here}",
    )


def _pyspark() -> Any:
    try:
        import pyspark
    except ImportError:
        raise UsageError(
            "spark: tflaunch's Python has no pyspark",
            beside_tflaunch("pyspark", "spark"),
        ) from None
    return pyspark


def _url(master: str) -> str:
    return f"spark:{master}" if master.startswith("//") else master


def last_words(text: str) -> str:
    """What a JVM has said last, in one line: of an exception, its first cause; "": nothing."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("at ", "... "))]
    causes = [line for line in said if line.startswith("Caused by: ")]
    return "".join([*said, *causes][-1:]).removeprefix("Caused by: ")[:300]
