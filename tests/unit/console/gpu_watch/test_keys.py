"""The keys of `gpus --watch`, through textual itself."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Awaitable, Callable, Sequence

import pytest
from textual.pilot import Pilot

from tests.support.gpus import FLEET, LEASED, LOST, NOW, answer, gpu, process
from tflaunch.console.gpu_watch.history import History
from tflaunch.console.gpu_watch.pages import Pages
from tflaunch.console.gpu_watch.state import Look, WatchView
from tflaunch.console.pen import ASCII, UNICODE, Marks
from tflaunch.console.safe_text import Text
from tflaunch.console.watch_app import Looked, WatchApp
from tflaunch.protocol.errors import ConnectError
from tflaunch.survey.gpu_overview import Answer, WantedGpus

LOADED = answer(
    "loaded",
    gpu(0, used=70, utilization_percent=97, temperature_c=81, processes=(process("carol", 4711, 70),)),
    gpu(1, utilization_percent=90),
)
LAB = [answer("idle", gpu(0, temperature_c=20)), LOADED, *FLEET]
MANY = [answer(f"gpu{number:03}", gpu(0), gpu(1)) for number in range(300)]


class Watch:
    """The watch without a terminal; every look is two seconds after the one before."""

    def __init__(self, pilot: Pilot[None], app: WatchApp) -> None:
        self._pilot, self.app = pilot, app
        self._at = 996.0  # so that the looks of a test begin with a column

    async def look(self, answers: Sequence[Answer], times: int = 1) -> None:
        for _ in range(times):
            self._at += 2.0
            self.app.post_message(Looked(Look(answers, self._at, NOW + self._at)))
            await self._pilot.pause()

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def resize(self, columns: int, rows: int) -> None:
        await self._pilot.resize_terminal(columns, rows)
        await self._pilot.pause()

    @property
    def lines(self) -> list[str]:
        return self.app.shown

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def hosts(self) -> list[str]:
        """The lines of hosts, by the first word of each; the selected one has >."""
        names = {each.host for each in (*LAB, *MANY)}
        found = (line.split()[0] for line in self.lines if line.strip())
        return [word for word in found if word.lstrip(">") in names]

    @property
    def selected(self) -> str:
        return next(word[1:] for word in self.hosts if word.startswith(">"))


def watched(
    act: Callable[[Watch], Awaitable[None]],
    answers: Sequence[Answer] = LAB,
    columns: int = 100,
    rows: int = 40,
    *,
    marks: Marks = UNICODE,
    wanted: WantedGpus | None = None,
) -> WatchApp:
    """Have `act` use the watch, whose hosts have answered once."""
    view = WatchView(History(2.0), wanted or WantedGpus())
    app = WatchApp(view, Pages(view, 2.0, marks))

    async def play() -> None:
        async with app.run_test(size=(columns, rows)) as pilot:
            watch = Watch(pilot, app)
            await watch.look(answers)
            await act(watch)

    asyncio.run(play())
    return app


def test_all_hosts_are_there_each_with_its_gpus_or_with_the_reason() -> None:
    async def act(watch: Watch) -> None:
        assert watch.hosts == [
            *(">idle", "loaded", "gpu01", "gpu02", "dead1", "dead2", "slow"),
            *("cpu01", "cpu02", "sick"),
        ]
        for words in (
            ("loaded", "1 of 2 free", "94%", "70.0/160 GiB", "81°", "carol 1"),
            ("  0 ", "● busy", "97%", "70.0/80 GiB", "carol", "python3 -u train.py"),
            ("  3 ", "leased", "bob run trainer-0102"),
            ("  2.1 ", "busy", "alice"),
            ("  7 ", "✗ broken", "GPU is lost"),
            ("dead1", "✗ no route"),
            ("slow", "waiting for its answer"),
            ("cpu01", "no NVIDIA driver"),
            ("sick", "NVML: Driver Not Loaded"),
        ):
            assert any(all(word in line for word in words) for line in watch.lines), (words, watch.text)

    watched(act, columns=130)


def test_q_and_ctrl_c_quit_from_every_page() -> None:
    for keys in (("q",), ("ctrl+c",), ("enter", "q"), ("question_mark", "q"), ("slash", "q", "ctrl+c")):

        async def act(watch: Watch, keys: tuple[str, ...] = keys) -> None:
            await watch.press(*keys[:-1])
            assert not watch.app._exit
            await watch.press(keys[-1])
            assert watch.app._exit

        watched(act)


@pytest.mark.parametrize("columns", [80, 130])
def test_a_short_name_of_a_host_leaves_room_for_the_models_of_its_gpus(columns: int) -> None:
    async def act(watch: Watch) -> None:
        assert re.search(r"^  3 +◐ leased H100 ", watch.text, re.MULTILINE), watch.text

    watched(act, [answer("a", LEASED)], columns=columns)


def test_arrows_move_among_hosts() -> None:
    async def act(watch: Watch) -> None:
        for key, host in (
            ("down", "loaded"),
            ("j", "gpu01"),
            ("up", "loaded"),
            ("end", "sick"),
            ("down", "sick"),
            ("home", "idle"),
            ("k", "idle"),
            ("pagedown", "sick"),
            ("pageup", "idle"),
        ):
            await watch.press(key)
            assert watch.selected == host, key

    watched(act)


@pytest.mark.parametrize(
    ("typed", "hosts", "gpus"),
    [
        ("load", [">loaded"], 2),
        ("RTX", [">gpu02"], 1),
        ("carol", [">loaded"], 1),
        ("bob", [">gpu01"], 1),
        ("h100 alice", [">gpu01"], 1),
        ("1g.10gb", [">gpu02"], 2),  # the GPU, and its one instance
        ("dead", [">dead1", "dead2"], 0),
    ],
)
def test_a_filter_shows_only_what_has_its_words(typed: str, hosts: list[str], gpus: int) -> None:
    async def act(watch: Watch) -> None:
        before = watch.hosts
        await watch.press("slash", *("space" if each == " " else each for each in typed))
        assert any(f"filter: {typed}_" in line for line in watch.lines)
        assert watch.hosts == hosts
        assert (
            sum(
                "free" in line or "busy" in line or "leased" in line or "MIG" in line
                for line in watch.lines
                if line.startswith("  ")
            )
            == gpus
        )
        await watch.press("enter")
        assert watch.hosts == hosts
        assert any(line.startswith(f"filter: {typed}") for line in watch.lines)
        await watch.press("escape")
        assert watch.hosts == before

    watched(act)


def test_keys_go_into_the_filter_while_it_is_typed_and_escape_brings_back_the_one_before() -> None:
    async def act(watch: Watch) -> None:
        await watch.press("slash", "l", "o", "a", "d", "enter")
        await watch.press("slash", "backspace", "ctrl+u", "s", "q", "question_mark", "r")
        assert watch.app.state.words == "sq?r"
        assert any("no host, model or user fits 'sq?r'" in line for line in watch.lines)
        await watch.press("escape")
        assert watch.hosts == [">loaded"]
        assert watch.app.state.order == "host"

    watched(act)


def test_the_summary_counts_what_a_filter_leaves() -> None:
    async def act(watch: Watch) -> None:
        assert "of 11 on 4 hosts" in watch.text
        await watch.press("slash", *"carol")
        assert "● 1 busy  of 1 on 1 host, 10 not shown" in watch.text

    watched(act)


def test_pasted_text_goes_into_the_filter_without_what_acts_on_a_terminal() -> None:
    app = WatchView(History(2.0), WantedGpus())
    app.paste("gpu")
    assert app.words == ""
    app.press("slash", "/")
    app.paste("gp\x1b[2Ju\n01")
    assert "\x1b" not in app.words
    assert app.words.startswith("gp")


def test_s_sorts_and_r_reverses() -> None:
    async def act(watch: Watch) -> None:
        down = ["dead1", "dead2", "slow", "cpu01", "cpu02", "sick"]
        for order, hosts, backwards in (
            ("by use, least first", ["idle", "gpu02", "gpu01", "loaded"], "by use, most first"),
            (
                "by memory, most free first",
                ["idle", "loaded", "gpu01", "gpu02"],
                "by memory, least free first",
            ),
            (
                "by temperature, hottest first",
                ["loaded", "gpu02", "gpu01", "idle"],
                "by temperature, coolest",
            ),
            ("by who uses it", ["gpu02", "gpu01", "loaded", "idle"], "by who uses it, reversed"),
        ):
            await watch.press("s")
            assert order in watch.lines[0]
            shown = [name.lstrip(">") for name in watch.hosts]
            assert (shown[:4], shown[4:]) == (hosts, down), order
            await watch.press("r")
            assert backwards in watch.lines[0]
            if "memory" not in order:  # where equal ones keep their order
                assert [name.lstrip(">") for name in watch.hosts] == [*reversed(hosts), *down]
        await watch.press("s")
        assert "by host" in watch.lines[0]

    watched(act)


def test_the_selected_host_stays_selected_wherever_it_is_sorted() -> None:
    async def act(watch: Watch) -> None:
        await watch.press("down")
        for _ in range(5):
            await watch.press("s")
            assert watch.selected == "loaded"

    watched(act)


def test_enter_shows_the_processes_of_a_host_and_escape_goes_back() -> None:
    busy = gpu(
        1,
        used=70,
        utilization_percent=97,
        processes=(process("alice", 4711, 60), process("bob", 4712, 10)),
        lease=dataclasses.replace(LEASED.lease, user="alice") if LEASED.lease else None,
    )

    async def act(watch: Watch) -> None:
        await watch.press("enter")
        assert "gpu01  1 of 4 free" in watch.lines[1]
        for words in (
            ("gpu", "pid", "user", "run", "memory", "for", "command"),
            ("1 ", "4711", "alice", "trainer-0102", "60.0 GiB", "2h", "/opt/env/bin/python3 -u /home/alice"),
            ("1 ", "4712", "bob", "10.0 GiB"),
            ("3 ", "bob", "trainer-0102", "no process on it"),
        ):
            assert any(all(word in line for word in words) for line in watch.lines), (words, watch.text)
        stranger = next(line for line in watch.lines if "4712" in line)
        assert "trainer-0102" not in stranger
        await watch.look(LAB)  # it is asked on; now nothing of that host has an answer
        await watch.press("escape")
        assert len(watch.hosts) > 5

    watched(act, [answer("gpu01", gpu(0), busy, LEASED, LOST)])


def test_where_there_is_room_the_graphs_of_a_host_are_high() -> None:
    async def act(watch: Watch) -> None:
        await watch.look([LOADED], 20)
        await watch.press("enter")
        first = next(number for number, line in enumerate(watch.lines) if line.startswith("  0 "))
        runs = [[len(run) for run in re.findall("[▁▂▃▄▅▆▇█]+", line)] for line in watch.lines]
        assert runs[first : first + 4] == [[5, 5], [5, 5], [5, 5], [5, 5]]
        assert runs[first + 4 : first + 8] == [[5], [5], [5], [5, 5]], "no memory of it is in use"

    watched(act, [LOADED])


def test_left_and_right_lead_to_the_next_host() -> None:
    async def act(watch: Watch) -> None:
        await watch.press("enter", "right")
        assert watch.lines[1].startswith("loaded")
        await watch.press("right", "left", "left")
        assert watch.lines[1].startswith("idle")
        await watch.press("escape")
        assert watch.selected == "idle"

    watched(act)


def test_the_page_of_a_host_that_is_down_has_the_reason_and_the_next_step() -> None:
    down = dataclasses.replace(LOADED, error=ConnectError("no answer on port 22", "ping {host}"), age_s=75.0)

    async def act(watch: Watch) -> None:
        assert any("✗ no answer on port 22  (its GPUs were seen 1m ago)" in line for line in watch.lines)
        await watch.press("enter")
        for words in ("no answer on port 22", "ping loaded", "seen 1m ago", "4711"):
            assert words in watch.text
        await watch.look([LOADED])
        assert "no answer" not in watch.text

    watched(act, [down])


def test_a_filter_that_the_shown_host_no_longer_passes_does_not_change_the_page() -> None:
    async def act(watch: Watch) -> None:
        await watch.press("slash", *"carol", "enter", "enter")
        await watch.look([LAB[0], answer("loaded", gpu(0), gpu(1))])
        assert watch.lines[1].startswith("loaded")
        assert "no process uses these GPUs" in watch.text

    watched(act)


def test_help_says_all_keys_and_that_no_history_is_kept() -> None:
    async def act(watch: Watch) -> None:
        await watch.press("question_mark")
        for words in ("Enter", "filter", "sort", "pause", "Ctrl-Z", "keeps no history of the last hours"):
            assert words in " ".join(watch.text.split()), words
        await watch.press("escape")
        assert watch.hosts

    watched(act, columns=80, rows=24)


def test_space_pauses_the_screen_not_the_asking() -> None:
    async def act(watch: Watch) -> None:
        await watch.press("space")
        assert "paused" in watch.lines[0]
        before = watch.lines
        await watch.look([answer("idle", gpu(0, utilization_percent=100, used=5))], 10)
        assert watch.lines == before
        await watch.press("down", "up")
        assert watch.lines == before
        await watch.press("space")
        assert "100%" in watch.text
        assert any("█" in line for line in watch.lines), "what was told during the pause is in the graphs"

    watched(act, [answer("idle", gpu(0))])


def test_graphs_move_with_time() -> None:
    async def act(watch: Watch) -> None:
        for percent in (0, 50, 100):
            await watch.look([answer("idle", gpu(0, utilization_percent=percent))], 5)
        assert graph_of_idle(watch) == "▁▅█"

    def graph_of_idle(watch: Watch) -> str:
        line = next(line for line in watch.lines if line.startswith(">idle"))
        return line[: line.index("%")].split()[-2][-3:]

    watched(act, [])


@pytest.mark.parametrize("columns", [60, 80, 130])
def test_hundreds_of_hosts_scroll_and_only_what_is_visible_is_drawn(columns: int) -> None:
    async def act(watch: Watch) -> None:
        assert len(watch.hosts) == 24 - 1 - 1 - 2  # title, headings, summary, keys
        await watch.press("end")
        assert watch.selected == "gpu299"
        assert watch.hosts[0] == "gpu280"
        await watch.press(*["up"] * 5)
        assert watch.hosts[0] == "gpu280", "the window stays while the selected host is in it"
        await watch.press("g")
        assert any(line.startswith("  1 ") for line in watch.lines)
        assert watch.selected == "gpu294"
        await watch.press("home")
        assert watch.selected == "gpu000"

    watched(act, MANY, columns, 24)


def test_gpus_are_shown_where_all_fit_until_the_user_says() -> None:
    async def act(watch: Watch) -> None:
        def gpus() -> int:
            return sum(line.startswith("  ") for line in watch.lines)

        assert gpus() > 5
        await watch.resize(100, 12)
        assert gpus() == 0
        await watch.press("g")
        assert gpus() >= 5
        await watch.resize(100, 40)
        assert gpus() > 5
        await watch.press("g")
        assert gpus() == 0

    watched(act)


@pytest.mark.parametrize("marks", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_every_window_is_filled_and_nothing_more(marks: Marks) -> None:
    async def act(watch: Watch) -> None:
        for columns, rows in ((20, 2), (40, 5), (60, 24), (80, 24), (100, 60), (130, 5), (250, 60), (1, 1)):
            await watch.resize(columns, rows)
            for keys in ((), ("enter",), ("question_mark",), ("escape", "escape", "slash", "x"), ("escape",)):
                await watch.press(*keys)
                assert [*map(len, watch.app.canvas.screen_rows)] == [columns] * rows
                if marks is ASCII:
                    assert watch.text.isascii()

    watched(act, marks=marks)


def test_a_resized_window_is_drawn_anew() -> None:
    async def act(watch: Watch) -> None:
        for columns, rows in ((60, 20), (130, 40), (80, 10)):
            await watch.resize(columns, rows)
            assert [*map(len, watch.app.canvas.screen_rows)] == [columns] * rows
            assert watch.selected == "idle"

    watched(act)


def test_options_leave_out_gpus_and_the_summary_says_so() -> None:
    async def act(watch: Watch) -> None:
        assert "carol" not in watch.text
        assert "not shown" in watch.text
        assert watch.hosts[:2] == [">idle", "loaded"]

    watched(act, wanted=WantedGpus(free=True))


def test_a_refresh_without_news_sends_the_clock_alone() -> None:
    async def act(watch: Watch) -> None:
        await watch.look(LAB, 6)  # the last one begins a column of the graphs
        watch.app.sent_bytes = watch.app.refreshes = 0
        await watch.look(LAB, 3)
        assert watch.app.refreshes == 3
        assert watch.app.sent_bytes <= 3 * 20

    watched(act)


def test_a_defect_in_drawing_ends_the_watch_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> list[Text]:
        raise ZeroDivisionError

    async def act(watch: Watch) -> None:
        monkeypatch.setattr(Pages, "screen", broken)
        await watch.look(LAB)
        assert watch.app._exit

    assert isinstance(watched(act).defect, ZeroDivisionError)
