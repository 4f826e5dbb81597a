"""Pictures of real sessions, for README and the documentation: `scripts/pictures [NAME...]`.

Each is typed by the reader of tests/docs/world.py, in the lab of the pages: hosts in network namespaces behind real
sshd, GPUs simulated below NVML, everything else real.  What the terminal shows becomes two SVGs, for dark and for
light pages, in docs/pictures/.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import pty
import re
import select
import shutil
import signal
import struct
import sys
import tempfile
import termios
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyte
import pyte.screens
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tests.docs.world import GPUS, MODELS, World, rename
from tests.support import ROOT, nvml
from tests.support import bed as beds
from tests.support.patience import PATIENCE_S
from tests.support.spark import SparkCluster

PICTURES = ROOT / "docs/pictures"
COLUMNS, ROWS = 100, 60
MAKER = "made-by"  # in the directory of the pictures' hosts: a pid
QUIET_S = 1.0  # what is on the screen is a picture once nothing has changed for so long
_NORMAL = [
    (1, 1, 1),
    (213, 94, 0),
    (0, 158, 115),
    (196, 160, 0),
    (59, 130, 196),
    (204, 121, 167),
    (86, 180, 233),
]


# Blue and yellow that cannot be read on a light page -> darker ones.
_ON_LIGHT = {"#56b4e9": "#0068a3", "#e69f00": "#8f6200", "#c4a000": "#7a6400", "#b8a800": "#706600"}


def _theme(background: tuple[int, int, int], foreground: tuple[int, int, int]) -> TerminalTheme:
    return TerminalTheme(background, foreground, [*_NORMAL, foreground], [*_NORMAL, foreground])


THEMES = {
    "dark": _theme((22, 27, 34), (222, 226, 230)),
    "light": _theme((250, 250, 248), (40, 44, 52)),
}
# Rich's own frame, without fonts from a network: a page must look the same without one.
LIBRARY: list[Path] = []  # the simulated NVML
AT_END = contextlib.ExitStack()  # what scenes have started, and end with the last one
SVG = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 15px; font-family: system-ui, sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


@dataclass(frozen=True)
class Scene:
    """One picture: what is typed, and when to look."""

    command: str
    until: str = ""  # a regular expression that the screen must show; "": the command has ended
    keys: str = ""  # typed then, before the picture is taken
    columns: int = COLUMNS
    rows: int = ROWS
    prepare: Callable[[World], object] | None = None
    meanwhile: Callable[[World, float], object] | None = None  # again and again; how many seconds have passed
    seconds: float = 0.0  # look only then
    files: Mapping[str, str] | None = None


WRONG_PATH = """\
import argparse, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
flags, _ = parser.parse_known_args()
print("reading", flags.data, flush=True)
time.sleep(1)
if os.environ["TFLAUNCH_TASK"] == "worker/1":
    with open(os.path.join(flags.data, "train-00001.tfrecord"), "rb") as file:
        print(len(file.read()))
time.sleep(60)
"""
HOLD = "import time\nwhile True:\n    print('step', flush=True)\n    time.sleep(1)\n"
TUNED = """\
import argparse, json, math, random, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--units", type=int)
flags = parser.parse_args()
goal = 0.1 + abs(math.log10(flags.lr) + 2) / 4 + 8 / flags.units
for epoch in range(24):
    time.sleep(random.uniform(0.2, 0.5))
    loss = goal + 0.6 * math.exp(-epoch / (4 + goal)) + random.uniform(-0.01, 0.01)
    print(json.dumps({"epoch": epoch, "loss": round(loss, 4)}), flush=True)
"""
LAB = f"defaults: {{python: {sys.executable}}}\nhosts: ['gpu[01-03]']\n"
STUCK = """\
import os, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import numpy as np
import tensorflow as tf

def batches():
    for step in range(100_000):
        if step == 60 and os.environ["TFLAUNCH_TASK"] == "worker/1":
            time.sleep(3600)  # a file server that does not answer
        yield np.random.rand(64, 4).astype(np.float32)

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    weights = tf.Variable(tf.ones((4, 1)))

@tf.function
def train(batch):
    def replica():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((batch @ weights) ** 2)
        gradient = tf.distribute.get_replica_context().all_reduce("mean", tape.gradient(loss, weights))
        weights.assign_sub(0.01 * gradient)
        return loss
    return strategy.reduce("mean", strategy.run(replica), axis=None)

for step, batch in enumerate(batches()):
    loss = train(tf.constant(batch))
    if step % 20 == 0:
        print(f"step {step:3}  loss {loss.numpy():.4f}", flush=True)
"""
CPU_ONLY = f"defaults: {{python: {sys.executable}, gpus: 0}}\nhosts: [gpu01, gpu02, storage]\n"


def busy(world: World) -> None:
    """A run has 12 GPUs of the lab."""
    quiet(world)
    world.must("tflaunch run --detach lab.yaml hold.py --name bert --ps 0 --workers 12")


def at_work(world: World) -> None:
    """A run has 12 GPUs of the lab, and computes on them."""
    busy(world)
    work(world, 2.0)


def work(world: World, passed_s: float) -> None:
    """The GPUs of that run are at work: their use rises and falls, each in its own time."""
    for number, (name, host) in enumerate(zip(MODELS, world.bed.hosts, strict=True)):
        model, memory = MODELS[name]
        lines = []
        for gpu in range(GPUS if model else 0):
            taken = number < 3 and gpu < 4
            wave = math.sin(passed_s / (3 + number) + gpu) + 0.3 * math.sin(9 * passed_s + gpu)
            use = max(0, min(100, int(70 + 30 * wave))) if taken else 0
            used = int(memory * (0.55 + 0.08 * gpu)) if taken else 0
            lines.append(
                f'gpu name="{model}" uuid=GPU-{number}{gpu} mem={memory} bus=0000:{number}{gpu}:00.0 '
                f"util={use} used={used} temp={35 + use // 3} power={(60 + 5 * use) * 1000}"
            )
        if lines:
            host.give_gpus(LIBRARY[0], *lines)


def quiet(world: World) -> None:
    """Nothing runs."""
    for name in world.must("tflaunch ps -q lab.yaml").out.split():
        world.must(f"tflaunch stop {name} --hosts lab.yaml")


def with_spark(world: World) -> None:
    """Two hosts are the workers of a Spark, and the launcher's machine is its `master`, too."""
    rename(world.bed.launcher, "master")
    world.bed.name_all()
    cluster = SparkCluster(world.bed, world.nfs / "spark", hosts=world.bed.hosts[:2])
    AT_END.callback(cluster.close)
    world.env |= cluster.env()


SCENES: dict[str, Scene] = {
    "run": Scene(
        "tflaunch run hosts.yaml async_ps.py --ps 1 --workers 2 -- --steps 1200",
        files={"hosts.yaml": CPU_ONLY, "async_ps.py": (ROOT / "examples/async_ps.py").read_text()},
    ),
    "failure": Scene(
        "tflaunch run lab.yaml trainer.py --ps 0 --workers 3 -- --data /data/imagenet",
        files={"trainer.py": WRONG_PATH},
    ),
    "hang": Scene(
        "tflaunch run hosts.yaml fit.py --workers 3",
        until=r"has done nothing for[\s\S]*wait for it",
        files={"hosts.yaml": CPU_ONLY, "fit.py": STUCK},
    ),
    "gpus": Scene("tflaunch gpus 'gpu[01-02]'", prepare=at_work),
    "gpus-watch": Scene(
        "tflaunch gpus lab.yaml --watch --interval 0.3s",
        until="gpu03",
        rows=34,
        prepare=busy,
        meanwhile=work,
        seconds=45.0,
    ),
    "check": Scene("tflaunch check lab.yaml --no-tensorflow", rows=50),
    "sweep": Scene(
        "tflaunch sweep gpu01:2,gpu02:2 tune.py --grid lr=0.1,0.03,0.01 --grid units=32,64,128 --metric loss",
        until=r"7 of 9 done",
        prepare=quiet,
        files={"tune.py": TUNED},
    ),
    "status": Scene("tflaunch status", prepare=busy),
    "spark": Scene(
        "tflaunch run spark://master:7077,2 async_ps.py --ps 1 --workers 2 -- --steps 1200",
        prepare=with_spark,
        files={"async_ps.py": (ROOT / "examples/async_ps.py").read_text()},
    ),
}


class Screen:
    """A terminal with a command on it, and what it shows now."""

    def __init__(self, argv: list[str], env: Mapping[str, str], columns: int, rows: int) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._pid, self._main = pty.fork()
        if not self._pid:
            try:
                os.execvpe(argv[0], argv, dict(env))  # noqa: S606
            finally:
                os._exit(127)
        fcntl.ioctl(self._main, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        """What the user types."""
        os.write(self._main, keys.encode())

    def read(self, timeout_s: float) -> bool | None:
        """Take what comes; returns whether anything came, None once the command has ended."""
        if not select.select([self._main], [], [], timeout_s)[0]:
            return False
        try:
            data = os.read(self._main, 65536)
        except OSError:
            return None
        self._stream.feed(data)
        return True if data else None

    def watch(
        self, pattern: str, least_s: float = 0.0, meanwhile: Callable[[float], object] = lambda _: None
    ) -> None:
        """Read until the screen shows it, at least so long; without a pattern, until the command has ended."""
        begun = time.monotonic()
        while True:
            passed = time.monotonic() - begun
            meanwhile(passed)
            came = self.read(QUIET_S / 4)
            if came is None:
                if pattern:
                    raise AssertionError(f"ended without {pattern!r}:\n" + "\n".join(self._screen.display))
                return
            if passed < least_s:
                continue
            if pattern and re.search(pattern, "\n".join(self._screen.display)):
                return
            if passed > least_s + PATIENCE_S:
                raise AssertionError(f"{pattern!r} never came:\n" + "\n".join(self._screen.display))

    def settle(self) -> None:
        """Read what is on its way."""
        for _ in range(5):
            if not self.read(QUIET_S):
                return

    def lines(self) -> list[Text]:
        """What it shows, down to the last line that is not empty."""
        found = [self._line(number) for number in range(self._screen.lines)]
        while found and not found[-1].plain.strip():
            found.pop()
        return found

    def end(self) -> None:
        """End the command."""
        try:
            os.kill(self._pid, signal.SIGINT)
            while self.read(PATIENCE_S) is not None:
                pass
        except ProcessLookupError:
            pass
        os.close(self._main)
        os.waitpid(self._pid, 0)

    def _line(self, number: int) -> Text:
        row, text = self._screen.buffer[number], Text(no_wrap=True)
        for column in range(self._screen.columns):
            text.append(row[column].data, _style(row[column]))
        return text


def _style(cell: pyte.screens.Char) -> Style:
    return Style(
        color=_colour(cell.fg),
        bgcolor=_colour(cell.bg),
        bold=cell.bold or None,
        italic=cell.italics or None,
        underline=cell.underscore or None,
        reverse=cell.reverse or None,
    )


def _colour(name: str) -> str | None:
    if name == "default":
        return None
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    return {"brown": "yellow", "brightblack": "#8b949e"}.get(name, name.replace("bright", "bright_"))


def draw(name: str, command: str, lines: list[Text], columns: int) -> None:
    """Write the picture's two SVGs."""
    words = textwrap.wrap(command, columns - len("~/proj $  \\"), break_on_hyphens=False)
    prompt = Text.assemble(("~/proj $ ", "green"), " \\\n           ".join(words))
    for theme, colours in THEMES.items():
        console = Console(record=True, width=columns, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115, PTH123
        console.print(prompt, *lines, sep="\n", no_wrap=True, crop=True, highlight=False)
        svg = console.export_svg(title="", theme=colours, code_format=SVG, unique_id=f"{name}-{theme}")
        for bright, dark in _ON_LIGHT.items() if theme == "light" else ():
            svg = svg.replace(bright, dark)
        PICTURES.mkdir(exist_ok=True)
        (PICTURES / f"{name}-{theme}.svg").write_text(svg)


def take(world: World, name: str) -> None:
    """Make one picture anew."""
    scene = SCENES[name]
    for file, text in {"lab.yaml": LAB, "hold.py": HOLD, **(scene.files or {})}.items():
        (world.proj / file).write_text(text)
    if scene.prepare is not None:
        scene.prepare(world)
    env = {each: value for each, value in world.env.items() if each not in ("COLUMNS", "TFLAUNCH_YES")}
    env |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "TFLAUNCH_YES": "1"}
    argv = world.bed.launcher.inside("bash", "-c", f"exec {scene.command}", cwd=world.proj)
    screen = Screen(argv, env, scene.columns, scene.rows)
    try:
        each = scene.meanwhile
        screen.watch(scene.until, scene.seconds, lambda passed: each and each(world, passed))
        if scene.keys:
            screen.type(scene.keys)
            screen.settle()
        draw(name, scene.command, screen.lines(), scene.columns)
    finally:
        screen.end()


def forget_killed(directory: Path) -> None:
    """Remove the directory if it is that of a `scripts/pictures` of this user that was killed."""
    with contextlib.suppress(OSError, ValueError):
        maker = int((directory / MAKER).read_text())
        if directory.stat().st_uid == os.getuid() and not Path(f"/proc/{maker}").exists():
            shutil.rmtree(directory)


def main(names: list[str]) -> int:
    """Make these pictures, or all."""
    if reason := beds.missing():
        print(f"scripts/pictures: {reason}", file=sys.stderr)
        return 1
    if unknown := set(names) - SCENES.keys():
        print(f"no picture {', '.join(sorted(unknown))}; there are {', '.join(SCENES)}", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as stack:
        directory = Path("/tmp/ada")  # pictures show paths: short ones, if nobody has that place
        forget_killed(directory)
        try:
            directory.mkdir(mode=0o700)
            (directory / MAKER).write_text(f"{os.getpid()}\n")
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
        except FileExistsError:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (library := directory / "nvml").mkdir()
        LIBRARY.append(nvml.build(library))
        world = World(directory, library)
        try:
            for name in names or SCENES:
                take(world, name)
                print(f"docs/pictures/{name}-dark.svg, {name}-light.svg")
        finally:
            AT_END.close()
            world.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
