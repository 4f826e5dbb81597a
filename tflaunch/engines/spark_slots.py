"""Slots from Spark: tasks of a barrier stage, one slot holder each, for as long as the launcher is their driver.

    tflaunch run spark://master:7077,4x1 trainer.py

The driver is the launcher: its end is the end of the application, and so of the slots.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shlex
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from tflaunch.engines import spark_rows
from tflaunch.engines.door import SlotDoor, dial, make_certificate
from tflaunch.engines.engine import EngineKey, ForWhom, GivenSlots, Handle
from tflaunch.engines.holder_text import holder_text, spark_feed_text, spark_task_text, task_package
from tflaunch.engines.spark_board import WORKER_GONE, SlotBoard
from tflaunch.engines.spark_driver import SparkDriver, never, said
from tflaunch.engines.spark_master import SlotSize
from tflaunch.engines.spark_rows import END_S, SparkRows
from tflaunch.hosts import Host
from tflaunch.inputs.amounts import seconds
from tflaunch.inputs.engine_words import WantedSlots
from tflaunch.protocol.errors import ConnectError, Gone, NotGiven, PlanError, TflaunchError, UsageError
from tflaunch.sessions.wires import Wire
from tflaunch.slot.spark_task import GPUS
from tflaunch.text.numbers import counted
from tflaunch_task.reading import VARIABLE as FEED

Result = TypeVar("Result")

LOOK_S = 0.2  # between two looks at what Spark has done
ROOM_S = 2.0  # between two looks at a master whose cores others have
LEAVE_S = 3.0  # for slot holders to end, all together
WORDS_S = 4.0  # for Spark to say why a slot is over, before the slot's own words do
GRACE_S = 5.0  # for tasks to save, after the engine has taken a slot back
# What Spark has for its own Python workers, and would mislead tasks.
CLEAN = ("PYTHONPATH", "PYTHONHASHSEED", "PYTHON_*", "SPARK_*", "PYSPARK_*", "_PYSPARK_*", "OMP_NUM_THREADS")
PYSPARK_PATH = "TFLAUNCH_PYSPARK"  # tells tasks where the executors have pyspark, for those that want it
CANCELLED = "the Spark job was cancelled"
STOPPED = "the Spark application was stopped"
AGAIN = "start the run again"


class SparkSlots:
    """A barrier stage that holds slots, and what this process knows of it."""

    def __init__(
        self, driver: SparkDriver, board: SlotBoard, run_id: str, rows: SparkRows | None = None
    ) -> None:
        self.driver = driver
        self.board = board
        self.rows = board.rows = rows
        self.error: Exception | None = None  # of the stage, which is over
        self.doors: tuple[SlotDoor, ...] = ()
        self._group = f"tflaunch-{secrets.token_hex(8)}"
        self._run_id = run_id
        self.over = threading.Event()
        self.over.set()  # nothing is submitted yet
        self._leaving = False

    def hold(self, texts: Sequence[str], secret: Mapping[str, str]) -> None:
        """Submit the stage: a task with one of these texts each."""
        board = {"addresses": self.board.addresses, "port": self.board.port, **secret}
        board["hadoop"] = self.driver.hadoop()
        self.over.clear()
        threading.Thread(target=self._job, args=[texts, board], name="spark job", daemon=True).start()

    def _job(self, texts: Sequence[str], board: Mapping[str, Any]) -> None:
        context = self.driver.context
        assert context is not None  # noqa: S101 - it was started
        try:
            context.setJobGroup(self._group, f"tflaunch {self._run_id}: slots", interruptOnCancel=True)
            if self.rows is not None:
                self.rows.hold(len(texts), _task(texts, board, self.rows.words))
            else:
                hold = _task(texts, board, {})
                stage = context.parallelize(range(len(texts)), len(texts)).barrier()
                stage.mapPartitionsWithIndex(lambda index, _: hold(index)).collect()
        except Exception as error:  # Spark's, py4j's, of the JVM
            self.error = error
            if not self._leaving:
                self.board.take_back(_words(error))
        finally:
            self.over.set()

    def leave(self) -> None:
        """End the slots and the stage; idempotent, silent."""
        self._leaving = True

        def ask(door: SlotDoor) -> None:
            with contextlib.suppress(Exception):
                door.leave("the run is over", LEAVE_S)

        asking = [threading.Thread(target=ask, args=[door], daemon=True) for door in self.doors]
        for each in asking:
            each.start()
        deadline = time.monotonic() + LEAVE_S
        for each in asking:
            each.join(max(0.0, deadline - time.monotonic()))
        if self.doors and not self.over.wait(self.rows.end_s if self.rows else END_S):
            self.board.let_go()
        if not self.over.is_set():
            with contextlib.suppress(Exception):
                assert self.driver.context is not None  # noqa: S101
                self.driver.context.cancelJobGroup(self._group)
            self.over.wait(END_S)
        self.board.close()
        with contextlib.suppress(Exception):
            self.driver.stop()


class Spark:
    """The engine, in the launcher's process."""

    keys = (
        EngineKey("master", "The master, as spark-submit takes it.", example="spark://host:7077"),
        EngineKey("cores", "Cores of each slot (spark.task.cpus).", "count", "4"),
        EngineKey("memory", "Memory of each executor's JVM (spark.executor.memory).", example="2g"),
        EngineKey("grace", "Time to save after Spark has taken a slot back.", "time", "10s"),
        EngineKey("feed", "Which rows of this process the tasks read; tflaunch.spark.run sets it."),
        EngineKey("conf", "Other settings of Spark, KEY=VALUE.", "words", "spark.ui.enabled=false"),
    )
    place = "master"
    stays = "it is the driver, and Spark ends an application with its driver"
    at_once = 64
    forgets = False

    def __init__(self) -> None:
        self._sets: dict[str, SparkSlots] = {}

    def take(self, wanted: WantedSlots, about: ForWhom) -> GivenSlots:
        size, conf, rows = _size(wanted), _conf(wanted), _rows(wanted)
        certificate, key = make_certificate()
        token = secrets.token_hex(16)
        secret = {"certificate": certificate, "token": token}
        board = SlotBoard(certificate, key, token)
        name = secrets.token_hex(8)
        handle = {**secret, "set": name, "board": json.dumps([*board.addresses, board.port])}
        master = wanted.settings.get("master", "")
        driver = SparkDriver(master, f"tflaunch {about.run_id}".rstrip(), wanted.count, size, conf)
        slots = SparkSlots(driver, board, about.run_id, rows)
        about.note(handle)
        self._sets[name] = slots
        try:
            self._start(driver, board, about, wanted.count)
            common = {**secret, "key": key, "door": True, "lifeline": True, "clean": CLEAN}
            common["grace_s"] = seconds(wanted.settings["grace"]) if "grace" in wanted.settings else GRACE_S
            common["gpus"] = GPUS if size.gpus else "none"
            texts = [holder_text({**common, "slot": str(index)}) for index in range(wanted.count)]
            slots.hold(texts, secret)
            told = self._told(slots, wanted.count, about)
            roles = [group.role for group in wanted.groups for _ in range(group.count)]
            about_all = {**handle, "application": driver.id}
            env = driver.environment()
            hosts = tuple(
                _host(
                    index, told[index], about_all, env, labels={"role": role} if role else {}, gpus=size.gpus
                )
                for index, role in enumerate(roles)
            )
        except BaseException:
            self.release(handle, ())
            raise
        slots.doors = tuple(_door(host) for host in hosts)
        return GivenSlots(handle, hosts, about.run_id)

    def _start(self, driver: SparkDriver, board: SlotBoard, about: ForWhom, count: int) -> None:
        """Have an application in which so many tasks can run at a time."""

        def look(why: str, do: Callable[[], Result], abandoned: Callable[[], None] = lambda: None) -> Result:
            return _aside(do, lambda: _wait(board, about, 0, count, why), abandoned)

        while (room := look("Spark's master is asked for its workers", driver.room)) is not None:
            total, free = room
            if total < count:
                raise PlanError(
                    f"spark: its workers have room for {counted(total, 'slot')} of this size, and {count} are wanted",
                    "ask for fewer, or for smaller ones: cores=, memory=",
                )
            if free >= count:
                break
            why = f"other applications use the workers: there is room for {free} of {count} slots"
            for _ in range(int(ROOM_S / LOOK_S)):
                _wait(board, about, 0, count, why)
        look("the Spark application starts", driver.start, driver.abandon)
        if (most := look("Spark starts the executors", driver.most)) is not None and most < count:
            raise PlanError(
                f"spark: {counted(most, 'task')} can run at a time in this application, and {count} slots are wanted",
                "ask for fewer slots, or for an application with more executors or cores",
            )
        while (now := look("Spark starts the executors", driver.slots)) < count:
            _wait(board, about, now, count, "Spark starts the executors")

    def _told(self, slots: SparkSlots, count: int, about: ForWhom) -> Mapping[int, Mapping[str, Any]]:
        """What the tasks of all slots have said."""
        while True:
            with slots.board.changed:
                told = dict(slots.board.told)
            if slots.error is not None:
                raise never(slots.error) or NotGiven(f"spark: {_words(slots.error)}", "start it again")
            if len(told) == count:
                return told
            _wait(
                slots.board,
                about,
                len(told),
                count,
                "Spark starts the slots; other jobs of the application may be before them",
            )

    def open(self, host: Host, command: str, first: bytes, timeout_s: float) -> Wire:
        return _door(host).open_unless(partial(self.over, host), command, first, timeout_s)

    def why(self, host: Host) -> str | None:
        slots = self._sets.get(host.slot["set"])
        return slots.board.why_lost(WORDS_S) if slots is not None else None

    def release(self, handle: Handle, hosts: Sequence[Host]) -> None:
        slots = self._sets.pop(handle.get("set", ""), None)
        if slots is not None:
            slots.leave()
            return
        for host in hosts:
            with contextlib.suppress(ConnectError):
                _door(host).leave("the run is over", LEAVE_S)
        with contextlib.suppress(ConnectError, ValueError, KeyError):
            _ask(handle, give_up=True)

    def there(self, settings: Mapping[str, str]) -> Sequence[GivenSlots]:  # noqa: ARG002 - as of every engine
        raise ConnectError(
            "spark: Spark does not tell which slots are yours",
            "call it where the driver runs, without --hosts: the record there leads to the run",
        )

    def over(self, host: Host) -> Gone | None:
        slot = host.slot
        slots = self._sets.get(slot["set"])
        if slots is not None:
            over = slots.board.over(int(slot["index"]))
        else:
            try:
                over = _ask(slot, ask=int(slot["index"])).get("over")
            except ConnectError:
                if _nobody_listens(*_board(slot)):
                    return Gone("spark: the application of this slot is over", AGAIN)
                return None  # out of reach
        if not isinstance(over, dict):
            return None
        code = over.get("code")
        return Gone(
            f"spark: {over.get('words')}",
            AGAIN,
            in_order=bool(over.get("in_order")),
            code=code if isinstance(code, int) else None,
        )


def _task(
    texts: Sequence[str], board: Mapping[str, Any], words: Mapping[str, Any]
) -> Callable[..., list[Any]]:
    """What a task of the stage does with its index: it holds the slot whose holder's text is `texts[index]`.

    With rows, its second argument makes their record batches, of the names in tflaunch.slot.spark_feed.
    It is made here, and so goes to the executors whole: they have no tflaunch to import it from.
    """
    program, package, feed = spark_task_text(), task_package(), spark_feed_text()

    def hold(index: int, batches: Any = None) -> list[Any]:
        scope: dict[str, Any] = {"__name__": "slot_of_spark"}
        exec(program, scope)  # noqa: S102 - it is ours
        make = None
        if batches is not None:
            feeding: dict[str, Any] = {"__name__": "feed_of_spark"}
            exec(feed, feeding)  # noqa: S102

            def make(ask: Any) -> Any:
                return feeding["Feed"](batches(feeding), words, ask)

        found: list[Any] = scope["hold"](index, texts[index], board, package, make)
        return found

    return hold


def _wait(board: SlotBoard, about: ForWhom, given: int, wanted: int, why: str) -> None:
    about.waits(given, wanted, why)
    about.pause(LOOK_S)
    if board.given_up:
        raise NotGiven("spark: the slots were given back by another command", "start it again")


def _aside(do: Callable[[], Result], wait: Callable[[], None], abandoned: Callable[[], None]) -> Result:
    """What `do` returns, done by a thread, whose JVM does not hear of Ctrl-C; `wait` ends the wait by an exception."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(do())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="spark", daemon=True)
    thread.start()
    thread.join(LOOK_S / 4)
    try:
        while thread.is_alive():
            wait()
    except BaseException:
        threading.Thread(target=abandoned, daemon=True).start()
        raise
    if errors:
        if isinstance(errors[0], TflaunchError):
            raise errors[0]
        raise ConnectError(
            f"spark: {said(errors[0])}", "see what Spark itself says: spark-submit with that master"
        )
    return results[0]


def _size(wanted: WantedSlots) -> SlotSize:
    sizes = {group.gpus for group in wanted.groups}
    if not wanted.groups:
        raise UsageError(
            "spark: how many slots? none are named", f"for example: {wanted.engine}://HOST:7077,4 for four"
        )
    if len(sizes) > 1 or any(group.settings for group in wanted.groups):
        raise UsageError(
            "spark: all slots of a Spark stage are of one size, and several are wanted",
            "ask for one: a ps takes no slot of its own, it shares that of a worker",
        )
    return SlotSize(int(wanted.settings.get("cores", "1")), sizes.pop(), wanted.settings.get("memory", ""))


def _rows(wanted: WantedSlots) -> SparkRows | None:
    key = wanted.settings.get("feed")
    if key is None:
        return None
    if (rows := spark_rows.OF.get(key)) is None:
        raise UsageError(
            f"spark: feed={key}: there are no such rows in this process",
            "a run that reads rows of Spark is started by tflaunch.spark.run(session, ..., feed=DATAFRAME)",
        )
    if (has := rows.partitions()) not in (None, wanted.count):
        raise UsageError(
            f"spark: the rows have {counted(has or 0, 'partition')}, and there are {wanted.count} slots",
            "leave repartition=False out; or make as many partitions as slots",
        )
    return rows


def _conf(wanted: WantedSlots) -> dict[str, str]:
    conf = {}
    for word in shlex.split(wanted.settings.get("conf", "")):
        key, equals, value = word.partition("=")
        if not equals or not key.startswith("spark."):
            raise UsageError(
                f"spark: conf: {word!r} is not spark.KEY=VALUE", "for example: conf=spark.ui.enabled=false"
            )
        conf[key] = value
    return conf


def _host(
    index: int,
    said_first: Mapping[str, Any],
    about: Mapping[str, str],
    env: Mapping[str, str],
    *,
    labels: Mapping[str, str],
    gpus: int,
) -> Host:
    told = said_first["told"]
    node = re.sub(r"[^A-Za-z0-9._-]", "-", str(told["node"])) or "slot"
    env = {**env, **said_first["hadoop"], PYSPARK_PATH: str(said_first["pyspark"])}
    if files := [str(each) for each in said_first["files"]]:
        env["PYTHONPATH"] = ":".join(files)
    if "rows" in said_first:
        env[FEED] = str(said_first["rows"])
    return Host(
        name=f"{node}-{index}",
        connection="spark",
        ssh_host=f"{node}-{index}",
        address=str(told["addresses"][0]),
        python=str(said_first["python"]),
        run_dir=f"{told['directory']}/runs",
        gpus="auto" if gpus else 0,
        slots_by=f"spark:{about['application']}",
        labels=labels,
        env=env,
        slot={
            **about,
            "id": f"{about['set']}.{index}",
            "index": str(index),
            "addresses": ",".join(map(str, told["addresses"])),
            "port": str(told["port"]),
        },
    )


def _door(host: Host) -> SlotDoor:
    slot = host.slot
    return SlotDoor(
        tuple(slot["addresses"].split(",")), int(slot["port"]), slot["certificate"], slot["token"]
    )


def _board(handle: Handle) -> tuple[list[str], int]:
    *addresses, port = json.loads(handle["board"])
    return [str(each) for each in addresses], int(port)


def _ask(handle: Handle, **what: object) -> dict[str, Any]:
    """What the driver's board answers.  Raises ConnectError."""
    addresses, port = _board(handle)
    line = dial(addresses, port, handle["certificate"], handle["token"], 5.0)
    try:
        return line.ask(**what)
    finally:
        line.close()


def _nobody_listens(addresses: Sequence[str], port: int) -> bool:
    """Whether that machine is up, and refuses: the process that listened there is gone."""
    outside = [each for each in addresses if not each.startswith("127.")] or list(addresses)
    for address in outside:
        try:
            socket.create_connection((address, port), 2).close()
            return False
        except ConnectionRefusedError:
            return True
        except OSError:
            continue
    return False


def _words(error: Exception) -> str:
    """Why Spark has ended the stage, in a sentence."""
    text = str(error)
    if "SparkContext was shut down" in text or "stopped SparkContext" in text:
        return STOPPED
    if "cancelled" in text and ("job group" in text or "Job " in text):
        return CANCELLED
    if type(error).__name__ in ("Py4JNetworkError", "Py4JError", "ConnectionRefusedError") and not getattr(
        error, "java_exception", None
    ):
        return "the JVM of the Spark driver is gone"
    if lost := re.search(r"ExecutorLostFailure \((executor \S{1,40}) exited", text):
        reason = (text[lost.end() :].partition("Reason: ")[2].splitlines() or [""])[0]
        return f"Spark has lost {lost[1]}: {reason[:200]}".rstrip(": ")
    if "Python worker exited unexpectedly" in text:
        return WORKER_GONE
    why = (
        text.partition(" finished unsuccessfully.")[2].strip().partition("\n")[0][:300]
    )  # of the barrier stage
    if why and "Traceback" not in why:
        return f"a task of the run's barrier stage in Spark has failed: {why}"
    above = re.split(r"\n SQLSTATE|\n\nJVM stacktrace", text)[
        0
    ]  # pyspark puts these below what a Python worker has raised
    trace = above.rpartition("Traceback")[2]
    raised = above.rpartition("\n")[2][:300] if trace != above and "\n\tat " not in trace else said(error)
    return f"the Spark stage has failed: {raised}"


ENGINE = Spark()
