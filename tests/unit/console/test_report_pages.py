"""The report as text and as a page: texts of hosts and programs do nothing in either."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.recorded_run import BEGAN, BINS, recorded, sampled, started
from tflaunch.console.pen import Sheet
from tflaunch.console.report_html import page
from tflaunch.console.report_page import MOST_HOSTS, report_lines
from tflaunch.documents.chrome_trace import chrome_trace
from tflaunch.documents.json_documents import ReportDocument
from tflaunch.documents.json_reports import WORDS
from tflaunch.documents.run_reports import report
from tflaunch.protocol.outcome import Outcome
from tflaunch.runs.samples import NAMES, most_bins
from tflaunch.sweeps.results import Result, Results

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-headless-shell", "google-chrome"))), None
)
EVIL = "</script><img src=http://127.0.0.1:9/x onerror=document.title=1><!--<script>\u2028\x1b[2J"
TASKS = {"ps/0": "gpu01", "worker/0": EVIL, "worker/1": "gpu03"}


class Read(html.parser.HTMLParser):
    """What a browser sees: the elements, with their attributes, and the text of each script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._within = tag if tag in self.texts else ""
        if self._within:
            self.texts[tag].append("")

    def handle_endtag(self, _: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within:
            self.texts[self._within][-1] += data


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReportDocument:
    events = [*started(TASKS), {"event": "warn", "time": 5.0, "text": f"worker/0 says {EVIL}"}]
    records = []
    for run in ("trainer-k3f9x2", "trainer-7d01be"):
        ended = Outcome(run, "succeeded", 0, 61.0)
        record = recorded(tmp_path, monkeypatch, run, TASKS, events=events, outcome=ended)
        rising = [float(number) for number in range(BINS)]
        sampled(
            record,
            {EVIL: [[number, 0.0, 100.0] for number in rising]},
            cores={"ps/0": rising, "worker/0": rising},
            step={"worker/0": rising, "worker/1": rising},
        )
        records.append(record)
    return report(records)


def test_no_text_of_a_host_is_html(document: ReportDocument) -> None:
    text = page(document)
    seen = Read(text)
    assert "img" not in [tag for tag, _ in seen.elements]
    assert "\u2028" not in text and "\x1b" not in text
    (data,) = [each for each in seen.texts["script"] if each.startswith("{")]
    there = json.loads(data)
    there.pop("words")
    assert there == json.loads(json.dumps(document)), "and yet it is there, as it was"
    assert EVIL in json.loads(data)["runs"][0]["tasks"][1]["host"]


def test_the_policy_lets_nothing_run_but_what_is_there_and_nothing_be_fetched(
    document: ReportDocument,
) -> None:
    seen = Read(page(document))
    (policy,) = [
        each["content"] for tag, each in seen.elements if each.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.split(" ", 1) for rule in str(policy).split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for name in ("script", "style"):
        texts = [each for each in seen.texts[name] if not each.startswith("{")]
        hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in texts]
        assert rules[f"{name}-src"] == " ".join(f"'sha256-{each}'" for each in hashes)
    assert rules.keys() == {"default-src", "script-src", "style-src", "base-uri", "form-action"}
    assert not [each for _, each in seen.elements if {"src", "href"} & each.keys()]


def test_the_script_makes_no_html_of_a_string() -> None:
    script = (Path(__file__).parents[3] / "tflaunch/console/report_files/page.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(", script)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_draws_all_of_it_and_asks_no_network(document: ReportDocument, tmp_path: Path) -> None:
    text = page(document)
    dom, asked = opened(text, tmp_path)
    assert 'data-drawn="yes"' in dom, "the script ran to its end"
    assert asked == []
    assert dom.count("<canvas") == 4 + 2 * 4, (
        "both over each other, and each alone: two of tasks, two of hosts"
    )
    assert "<img" not in dom
    assert "&lt;img src=http" in dom, "the evil host is there as text"
    # One that does ask the network is found out: what it wants of it is not let through, and is seen without a policy.
    worse = text.replace('<main id="report">', '<img src="http://127.0.0.1:9/x"><main id="report">')
    assert opened(worse, tmp_path)[1] == []
    _, asked = opened(re.sub(r"<meta http-equiv[^>]*>", "", worse), tmp_path)
    assert asked == ["http://127.0.0.1:9/x"]


def opened(text: str, directory: Path) -> tuple[str, list[str]]:
    """(the page as Chromium has it in the end, what the page has asked the network for)."""
    (directory / "page.html").write_text(text, encoding="utf-8")
    words = [
        *(str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
        *(
            "--disable-background-networking",
            "--disable-component-update",
            f"--user-data-dir={directory / 'profile'}",
        ),
        *(f"--log-net-log={directory / 'net.json'}", "--virtual-time-budget=3000", "--dump-dom"),
    ]
    done = subprocess.run(
        [*words, (directory / "page.html").as_uri()], capture_output=True, text=True, check=True
    )
    log: dict[str, Any] = json.loads((directory / "net.json").read_text())
    start = log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    asked = [
        each["params"] for each in log["events"] if each["type"] == start and "url" in each.get("params", {})
    ]
    # What the browser itself wants, such as its updates, has no page behind it.
    return done.stdout, [each["url"] for each in asked if each.get("initiator") != "not an origin"]


def test_text_page_and_trace_say_the_same_of_a_status_and_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [*started({"worker/0": "gpu01"}), {"event": "say", "time": 5.0, "text": "TensorBoard is there"}]
    stopped = Outcome("stopped-a1b2c3", "interrupted", 130, 61.0)
    runs = (("stopped-a1b2c3", stopped), ("killed-a1b2c3", None))
    made = report(
        [recorded(tmp_path, monkeypatch, run, TASKS, events=events, outcome=end) for run, end in runs]
    )
    lines = "\n".join(line.plain for line in report_lines(made, Sheet(None)))
    names = json.dumps(chrome_trace(made), ensure_ascii=False)
    for said in ("stopped-a1b2c3 {}stopped{}", "killed-a1b2c3 {}has no known end{}"):
        assert said.format("", "") in lines
        assert said.format("(", ")") in names
    assert re.search(r"told +TensorBoard is there", lines)
    assert "told: TensorBoard is there" in names
    text = page(made)
    (data,) = [each for each in Read(text).texts["script"] if each.startswith("{")]
    assert json.loads(data)["words"] == WORDS
    if CHROMIUM is not None:
        dom, _ = opened(text, tmp_path)
        assert not [said for said in (">stopped<", ">has no known end<", ">told<") if said not in dom]
        assert not [word for word in WORDS if f">{word}<" in dom]


def test_a_thousand_tasks_make_a_page_below_5_mb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {f"worker/{number}": f"gpu{number:04}" for number in range(1000)}
    record = recorded(tmp_path, monkeypatch, "trainer-k3f9x2", tasks, events=started(tasks))
    columns = {name: dict.fromkeys(tasks, (1.23e8, 0.123)) for name in NAMES}
    sampled(record, dict.fromkeys(tasks.values(), [[99.9, 0.1, 33.3]] * 2), **columns)
    document = report([record])
    samples = document["runs"][0]["samples"]
    assert samples is not None
    with_two = len(page(document).encode())
    samples["bins"].pop()
    samples["host_bins"].pop()
    one = with_two - len(page(document).encode())
    assert with_two + (most_bins(1000, 1000) - 2) * one < 5_000_000


@pytest.mark.parametrize("columns", [None, 80, 40])
def test_the_text_fits_and_acts_on_no_terminal(document: ReportDocument, columns: int | None) -> None:
    lines = [line.plain for line in report_lines(document, Sheet(columns))]
    assert not [line for line in lines if "\x1b" in line or "\n" in line]
    shown = "\n".join(lines)
    for word in ("trainer-k3f9x2 succeeded after", "worker/1", "waits: processor", "command", "0123abcd"):
        assert word in shown, word
    assert columns == 40 or "100 %, most 100 %" in shown
    assert "▁" in shown or columns is not None, "a curve for each task"


def test_a_sweep_of_which_nothing_is_known_but_its_trial_has_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = recorded(tmp_path, monkeypatch, "lr-k3f9x2", {})
    Results(record).keep_trials([{"lr": "0.1"}], 7, {"program": ["t.py"], "args": []})
    sampled(record, quiet_s={"trial/0": [12.0]})
    lines = [line.plain for line in report_lines(report([record]), Sheet(80))]
    assert "  trial/0  lr=0.1" in lines, lines


@pytest.mark.parametrize("columns", [60, 70, 80, 90, 100, 110, 140, None])
def test_what_a_trial_has_used_gives_way_to_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int | None
) -> None:
    params = {"learning_rate": "0.00012345", "dropout": "0.12345", "beta2": "0.9999"}
    record = recorded(tmp_path, monkeypatch, "lr-k3f9x2", {})
    results = Results(record)
    results.keep_trials([params, {**params, "beta2": "0.99995"}], 7, {"program": ["t.py"], "args": []})
    for number in range(2):
        end = {"seconds": 20.0, "ended": BEGAN + 30, "why": "", "log": "", "signal": None, "exit_code": 0}
        results.add(
            Result(number, params, 0.123456, "succeeded", host="gpu01", gpus=("0",), attempts=1, **end)  # type: ignore[arg-type]
        )
    sampled(record, cores={f"trial/{number}": [1.0, 2.0] for number in range(2)})
    lines = [line.plain for line in report_lines(report([record]), Sheet(columns))]
    rows = [line for line in lines if line.startswith("  trial/")]
    assert len(rows) == 2
    for row, beta in zip(rows, ("0.9999", "0.99995"), strict=True):
        values = [each.partition("=")[2] for each in row.split() if "=" in each]
        assert all(
            value in each
            for value, each in zip(
                values,
                (("0.00012345", "0.000123", "0.00012"), ("0.12345", "0.123", "0.12"), (beta,)),
                strict=False,
            )
        ), row
        assert len(values) == 3 or (columns in (60, 70, 80) and " … " in row), row
        assert values or columns == 60, row
        assert "0.123456" in row and "exit code 0" in row
    assert ("▁" in rows[0] or "█" in rows[0]) == (columns is None or columns > 100), "a curve goes first"


@pytest.mark.parametrize("columns", [40, 80, None])
def test_of_many_hosts_a_terminal_has_those_that_waited_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int | None
) -> None:
    tasks = {f"worker/{number}": f"gpu{number:04}" for number in range(100)}
    record = recorded(tmp_path, monkeypatch, "trainer-k3f9x2", tasks, events=started(tasks))
    waits = {host: [[100.0 - number, 0.0, 100.0]] for number, host in enumerate(tasks.values())}
    for host in (*waits,)[MOST_HOSTS:]:
        waits[host] = [[7.0, 0.0, 6.0]]
    sampled(record, waits, cores={task: [1.0] for task in tasks})
    lines = [line.plain for line in report_lines(report([record]), Sheet(columns))]
    (heading,) = [number for number, line in enumerate(lines) if "waits: processor" in line]
    assert lines[heading].split()[:3] == ["host", "waits:", "processor"]
    rows = lines[heading + 1 : lines.index("", heading)]
    shown = [row for row in rows if row.startswith("  gpu")]
    if columns is None:
        assert len(shown) == len(rows) == 100
        return
    assert [row.split()[0] for row in shown] == [f"gpu{number:04}" for number in range(MOST_HOSTS)]
    assert all(len(row) <= columns and not row.endswith("…") for row in shown), "no number is cut"
    assert rows[MOST_HOSTS].startswith("  … 80 hosts more: none waited more")
    if columns == 80:
        assert "none waited more than 7 % of the time" in rows[MOST_HOSTS]
        assert not rows[MOST_HOSTS + 1 :]
    else:
        assert rows[MOST_HOSTS + 1].startswith("  no room here for memory, disk")
