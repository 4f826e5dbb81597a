"""The recipes of CONTRIBUTING.md: whoever follows one has the new thing wherever such things are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.agent_over_pipes import interpreters
from tflaunch.protocol.errors import EXIT_USAGE

GROUP = "inputs/options/job_groups.py"
USER = "api/requests/run.py"
DECLARED = """
    patience: float = option(7.0, help="Be patient for this time, whatever --restarts says.", also_of=("up",))
"""
USED = """
    if options.restarts.patience != 7:
        raise UsageError(f"patient for {options.restarts.patience:g} s")
"""
PLAN, REQUEST = "planning/cluster_plan.py", "protocol/messages.py"
# The plan and the requests of a run and of a sweep, in which each task has a colour.
COLOURED = """
import json
from pathlib import Path
from tests.support.planned import asked, facts, plan
from tflaunch.hosts import Host, Hostfile
from tflaunch.launch.request import Request
from tflaunch.planning.gpu_choice import GpuChoice
from tflaunch.protocol.fields import check
from tflaunch.protocol.messages import _request
from tflaunch.sweeps.lifecycle import Seat
from tflaunch.sweeps.seats import TrialRequests
from tflaunch.sweeps.trials import Trial

job = asked(ps=0, workers=1, colour="red")
(task,) = plan(job, facts("h1")).tasks
hosts = Hostfile("hosts.yaml", (Host("h1"),))
trial = TrialRequests(Request("r-1", job, hosts, GpuChoice(), None, ()), 1)(Trial(0, {}), Seat("h1"))
for request in (task.to_wire(), trial):
    check(_request, request)
    print(request["colour"])
"""
TABLE = "frameworks/table.py"
FRAMEWORK = """
from tflaunch.frameworks.framework import Framework, Rank

def _environment(rank: Rank) -> "dict[str, str]":
    return {"ABACUS_BEAD": f"{rank.rank}/{rank.size}"}

FRAMEWORK = Framework(
    name="abacus", title="Abacus", packages=("abacus",), launching=frozenset({"abacus"}), by_rank=True,
    environment=_environment,
)
"""
ENGINES = "inputs/engine_words.py"
# Its slots are processes of this machine.
ENGINE = """
import contextlib, json, secrets, subprocess, sys

from tflaunch.engines.door import SlotDoor, make_certificate
from tflaunch.engines.engine import EngineKey, GivenSlots
from tflaunch.engines.holder_text import holder_text
from tflaunch.hosts import Host
from tflaunch.protocol.errors import ConnectError

class Rack:
    keys = (EngineKey("shelf", "The number of the shelf.", "count", "3"),)
    place = stays = ""
    at_once = 8

    def take(self, wanted, about):
        about.note({"job": "1"})
        slots = range(wanted.count)
        return GivenSlots({"job": "1"}, tuple(self._slot(f"bead{number}") for number in slots), about.run_id)

    def _slot(self, name):
        certificate, key = make_certificate()
        secret = {"token": secrets.token_hex(16), "certificate": certificate}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        holder = subprocess.Popen([sys.executable, "-"], **pipes, start_new_session=True)
        holder.stdin.write(holder_text({**secret, "key": key, "door": True, "gpus": "none"}).encode())
        holder.stdin.close()
        told = json.loads(holder.stdout.readline())
        slot = {**secret, "port": str(told["port"])}
        return Host(name, "rack", address="127.0.0.1", gpus=0, run_dir=told["directory"] + "/runs", slot=slot)

    def open(self, host, command, first, timeout_s):
        return self._door(host).open(command, first, timeout_s)

    def over(self, host):
        return None

    def why(self, host):
        return None

    def release(self, handle, hosts):
        for host in hosts:
            with contextlib.suppress(ConnectError):
                self._door(host).leave("the run is over", 5.0)

    def there(self, settings):
        return ()

    def _door(self, host):
        slot = host.slot
        return SlotDoor(("127.0.0.1",), int(slot["port"]), slot["certificate"], slot["token"])

ENGINE = Rack()
"""
FACTS = "protocol/facts.py"
PROBE = "gpu_probe.py"
FACT = """
    fan_percent: "Optional[int]" = fact(or_null(a_whole_number), "how fast its fan turns", default=None)
"""
PROBED = """
    gpu["fan_percent"] = ask(nvml, "nvmlDeviceGetFanSpeed", handle)
"""
# A GPU's way from NVML over the wire into `gpus --json`; argv: what the host says of the new fact.
GPU_TO_JSON = """
import json, sys
from tflaunch import gpu_probe
from tflaunch.documents.json_objects import of_document
from tflaunch.planning.inventory import HostFacts
from tflaunch.protocol.messages import FROM_AGENT, check
from tflaunch.protocol.wire import Message, WireError
from tflaunch.survey.gpu_overview import Answer, document, look

class Nvml:
    nvmlDeviceGetFanSpeed = staticmethod(lambda handle: json.loads(sys.argv[1]))
    def __getattr__(self, name):
        raise AttributeError(name)

gpu = gpu_probe._unknown(0)
gpu_probe._fill(Nvml(), None, gpu)
said = {"hostname": "h", "boot_id": "b", "addresses": [], "python": "3.8.0", "cores": 1, "load": 0.0,
    "memory_bytes": 1, "memory_available_bytes": 1, "disk_free_bytes": 1, "ports": [], "gpus": [gpu], "driver": "",
    "cuda": "", "gpu_note": "", "lacks": "", "queue": [], "queue_error": "", "clock": 0.0, "proxies": []}
try:
    check(Message("facts", said), FROM_AGENT)
except WireError as error:
    sys.exit(str(error))
answers = [Answer("h1", HostFacts.from_wire("h1", said))]
made = document(look(answers), answers, 0.0)
sys.exit(of_document("gpus", made) or print(made["hosts"][0]["gpus"][0]["fan_percent"]))
"""
ENDS = "ends/files.py"
ENDS_CASES = "tests/unit/ends"
MEANING = """
    EndRule(rf"bead ({PATH}) has come off", "{task} has lost the bead {0} on {host}: thread it again"),"""
WATCHDOG = "lifecycle/watchdog.py"
WATCHING = """
from __future__ import annotations

from typing import TYPE_CHECKING

from tflaunch.diagnosis.rule import Rule, Sentence

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet
    from typing import Any

    from tflaunch.diagnosis.rule import Watched


class LostBeads(Rule):
    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._new: list[str] = []

    def looked(self, host: str, fields: Mapping[str, Any], now: float) -> None:
        self._new += [task for task, look in fields["tasks"].items() if "bead" in look["says"]]

    def sentences(self, now: float, explained: AbstractSet[str]) -> list[Sentence]:
        told, self._new = self._new, []
        return [Sentence(f"{self._watched.who([task])} has lost a bead", False) for task in told]
"""
# A watchdog hears of a look at worker/0, which says so or does not.
WATCH = """
from tflaunch.diagnosis.lost_beads import LostBeads
from tflaunch.lifecycle.watchdog import rules_for
from tflaunch.diagnosis.rule import Place, Watched

rules = rules_for(Watched({"worker/0": Place("h1", "10.0.0.1", 2222)}))
rule = rules["lost_beads"]
assert isinstance(rule, LostBeads) and [*rules].index("lost_beads") < [*rules].index("stillness")
for says in ("step 7", "bead 3 is lost"):
    rule.looked("h1", {"tasks": {"worker/0": {"says": says}}}, 1.0)
    print([each.text for each in rule.sentences(1.0, set())])
"""
VERB = "cli/beads.py"
COUNTING = """
from __future__ import annotations

from tflaunch.inputs.options.groups import SshOptions

def beads(*, ssh: SshOptions) -> None:
    \'\'\'Print how many beads there are.\'\'\'
    print(f"seven beads, within {ssh.connect_timeout:g} s")
"""
GUIDED = """
        "beads": Guide("Count the beads", (
            Example("tflaunch beads", "all"), Example("tflaunch beads > count", "into a file"),
            Example("tflaunch beads | cat", "through a pipe"))),
"""
# What the suite asks of verbs in general.
OF_VERBS = (
    "cli/test_help.py::test_every_verb_has_its_place_in_the_help",
    "cli/test_help.py::test_the_readme_has_every_verb",
    "cli/test_help.py::test_every_exit_code_is_told_once",
    "cli/test_configured.py::test_each_key_is_an_option_of_its_verb[beads]",
    "test_reference.py::test_the_man_page_has_every_verb",
)
# What the suite asks of options in general.
CHECKS = (
    "api/test_keywords.py::test_every_option_of_run_is_a_keyword",
    "api/test_keywords.py::test_a_keyword_means_what_its_option_means[patience]",
    "cli/test_configured.py::test_each_option_of_run_is_a_key_or_of_one_run",
    "cli/test_configured.py::test_each_key_is_an_option_of_its_verb[up]",
    "inputs/test_job_file.py::test_every_option_of_run_can_be_said_in_it",
    "inputs/test_job_file.py::test_schema_describes_every_key",
    "inputs/test_config.py::test_the_schema_has_every_key",
    "test_reference.py::test_the_keywords_of_the_api_are_those_of_the_options",
)


def insert(file: Path, behind: str, text: str) -> None:
    """Write `text` into the file behind the first text that matches the pattern."""
    found = re.search(behind, file.read_text("utf-8"), re.DOTALL)
    assert found is not None
    whole = found.string
    file.write_text(whole[: found.end()] + text + whole[found.end() :], "utf-8")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, in which one recipe after the other is followed."""
    tmp_path = tmp_path_factory.mktemp("tree")
    leave = shutil.ignore_patterns("__pycache__", "*.whl", "*.png", "*.svg", "reference", "logs")
    for part in ("tflaunch", "tflaunch_task", "docs", "tests"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=leave)
    shutil.copy(ROOT / "README.md", tmp_path)
    for part in ("pyproject.toml", "CHANGELOG.md", "CONTRIBUTING.md", "examples"):
        (tmp_path / part).symlink_to(ROOT / part)
    return tmp_path


def named_in(recipe: str) -> set[str]:
    """The files and scripts that the recipe of that name has one go to."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (found,) = re.findall(rf"^\*\*{recipe}\*\*.*?(?=^\*\*|^## )", text, re.M | re.S)
    return set(re.findall(r"`([^`]+)`", found))


def run(at: Path, *words: str, code: int = 0) -> str:
    """What Python prints in that directory, with the tflaunch of the copy."""
    root = at if (at / "tflaunch").exists() else at.parent
    places = dict.fromkeys(("PYTHONPATH", "HOME", "TFLAUNCH_ETC", "XDG_CONFIG_HOME"), str(root))
    env = {**os.environ, **places, "COLUMNS": "300"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=at,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


# A tflaunch that carries out several command lines, each an argument.
TYPE = """
import sys
from tflaunch.cli import main
for line in sys.argv[1:]:
    sys.argv[1:] = line.split()
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    print("ended with", code, flush=True)
"""


def typed(tree: Path, *lines: str, code: int = 0) -> list[str]:
    """What each command line prints there; each must end with `code`."""
    *printed, rest = run(tree, "-c", TYPE, *lines).split(f"ended with {code}\n")
    assert len(printed) == len(lines), rest
    return printed


def test_an_option_that_is_declared_and_used_is_everywhere(tree: Path) -> None:
    assert {GROUP, USER, "scripts/docs man"} <= named_in("An option")
    insert(tree / "tflaunch" / GROUP, r"class RestartOptions:.*?panel = \w+\n", DECLARED)
    insert(tree / "tflaunch" / USER, r"Raise UsageError for options that exclude each other\.\"\"\"\n", USED)
    run(tree / "docs", "-m", "generator.keywords")  # as `scripts/docs man` does
    (tree / "t.py").write_text("")
    (tree / "job.yaml").write_text("program: t.py\npatience: 2m\n")
    (tree / "wrong.yaml").write_text("program: t.py\npatience: soon\n")
    start = "run h1 --dry-run"
    a_minute, in_a_file, not_a_time, none_in_a_file = typed(
        tree,
        f"{start} --patience 1m t.py",
        f"{start} job.yaml",
        f"{start} t.py --patience=soon",
        f"{start} wrong.yaml",
        code=EXIT_USAGE,
    )
    assert "patient for 60 s" in a_minute
    assert "patient for 120 s" in in_a_file
    assert "--patience: 'soon' is not a time" in not_a_time
    assert "wrong.yaml:2:11: patience: 'soon' is not a time: 90 (seconds)" in none_in_a_file
    program = "from tflaunch import api; api.make_plan('h1', 't.py', patience='5m')"
    assert "patient for 300 s" in run(tree, "-c", program, code=1)
    (tree / "config.toml").write_text("[run]\npatience = '3m'\n")
    assert "patient for 180 s" in run(tree, "-m", "tflaunch", *start.split(), "t.py", code=EXIT_USAGE)
    (tree / "config.toml").unlink()

    meaning = "Be patient for this time, whatever `restarts` says."
    job, config = map(json.loads, typed(tree, "schema job", "schema config"))
    assert job["properties"]["patience"]["description"] == meaning
    tables = config["$defs"]
    assert [name for name, table in tables.items() if "patience" in table["properties"]] == [
        "RunTable",
        "UpTable",
    ]

    run(tree / "docs", "-c", "import pathlib, generator; generator.write(pathlib.Path('reference'))")
    pages = {page.stem for page in (tree / "docs/reference").glob("*.md") if "Be patient" in page.read_text()}
    assert pages == {"run", "up", "job-file-keys", "config-keys", "python-api", "tflaunch.1"}
    run(
        tree,
        "-m",
        "pytest",
        "-q",
        "-n0",
        "-p",
        "no:cacheprovider",
        *(f"tests/unit/{each}" for each in CHECKS),
    )


def test_a_field_of_a_task_is_in_its_request_whoever_plans_it(tree: Path) -> None:
    assert {"protocol/job.py", PLAN, REQUEST, "on_host", "to_wire"} <= named_in("A field of a task")
    insert(tree / "tflaunch/protocol/job.py", r"\n    done: Done = [^\n]*\n", '    colour: str = "blue"\n')
    insert(tree / "tflaunch" / PLAN, r"\n    container: str = [^\n]*\n", '    colour: str = "blue"\n')
    insert(tree / "tflaunch" / PLAN, r'"cwd": host.workdir,\n', '        "colour": job.colour,\n')
    insert(
        tree / "tflaunch" / PLAN,
        r'"cwd": self.cwd,\n            "setup"[^\n]*\n',
        '            "colour": self.colour,\n',
    )
    insert(tree / "tflaunch" / REQUEST, r'\n_request = \{.*?"\?cpus": a_text,\n', '    "?colour": a_word,\n')
    assert run(tree, "-c", COLOURED) == "red\nred\n"


# Before the framework, which has no page here: the reference could not be made.
def test_a_verb_that_has_its_file_and_its_lines_is_everywhere(tree: Path) -> None:
    lines = {"VERBS": "cli/__init__.py", "Guide": "cli/guide.py", "ExitCode": "cli/exit_codes.py"}
    configured = "inputs/options/in_files.py"
    assert {"cli/", *lines.values(), configured, "README.md", "scripts/docs man"} <= named_in("A verb")
    (tree / "tflaunch" / VERB).write_text(COUNTING)
    insert(tree / "tflaunch" / lines["VERBS"], r"\nVERBS = \{\n", '    "beads": ("beads:beads", _COMMAND),\n')
    insert(tree / "tflaunch" / lines["Guide"], r'\n    "More": \{', GUIDED)
    insert(tree / "tflaunch" / lines["ExitCode"], r"\nOF_VERB:[^\n]*\n", '    "beads": (_PRINTED,),\n')
    insert(tree / "tflaunch" / configured, r"\nOF_VERB:[^\n]*\n", '    "beads": (SshOptions,),\n')
    insert(tree / "README.md", r"\n\*\*Tidy up\*\*\n\n", "- `beads` counts the beads\n")
    assert typed(tree, "beads --connect-timeout=9") == ["seven beads, within 9 s\n"]
    (tree / "config.toml").write_text("[beads]\nconnect_timeout = '1m'\n")
    assert typed(tree, "beads") == ["seven beads, within 60 s\n"]
    (tree / "config.toml").unlink()
    everything, page = typed(tree, "help", "beads --help")
    assert "Count the beads" in everything
    assert "Print how many beads there are." in page
    assert "through a pipe" in page
    assert "Exit codes" in page
    run(tree / "docs", "-c", "import pathlib, generator; generator.write(pathlib.Path('reference'))")
    pages = {page.stem for page in (tree / "docs/reference").iterdir() if "beads" in page.read_text()}
    assert {"beads", "tflaunch.1"} <= pages
    played = (f"tests/unit/{each}" for each in OF_VERBS)
    run(tree, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *played)


def test_a_framework_that_has_its_file_and_its_place_is_everywhere(tree: Path) -> None:
    assert {"frameworks/", TABLE, "scripts/docs man"} <= named_in("A framework")
    (tree / "tflaunch/frameworks/abacus.py").write_text(FRAMEWORK)
    insert(tree / "tflaunch" / TABLE, r"import (?=horovod)", "abacus, ")
    insert(tree / "tflaunch" / TABLE, r"\nALL = \(", "abacus.FRAMEWORK, ")
    run(tree / "docs", "-m", "generator.keywords")
    (tree / "t.py").write_text("import abacus.cluster\n")
    here = "- {name: %s, connection: local, run_dir: %s}\n"
    (tree / "hosts.yaml").write_text("".join(here % (name, tree / name) for name in ("h1", "h2")))
    start = "run hosts.yaml --dry-run --workers=2 --json --quiet t.py"
    for printed in typed(tree, start, f"{start} --framework=abacus"):
        plan = json.loads(printed.splitlines()[-1])
        tasks = {task["task"]: task for task in plan["tasks"]}
        assert tasks.keys() == {"worker/0", "worker/1"}
        assert tasks["worker/1"]["env"]["ABACUS_BEAD"] == "1/2"
        assert "RANK" not in tasks["worker/1"]["env"]
        assert "--job_name=worker" not in tasks["worker/1"]["argv"]
    (tree / "job.yaml").write_text("program: t.py\nframework: abakus\n")
    wrong = run(tree, "-m", "tflaunch", "run", "h1", "job.yaml", code=EXIT_USAGE)
    assert "is none of auto, abacus, tensorflow, jax, torch" in wrong
    assert '"abacus"' in (tree / "tflaunch/api/keywords.py").read_text()
    house = ("tests/unit/test_house.py", "-k", f"not every_python or {interpreters()[0]}")
    run(tree, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *house)


def test_an_engine_that_has_its_file_and_its_line_gives_slots(tree: Path) -> None:
    own = {"engines/", "engines/engine.py", "engines/holder_text.py", "engines/door.py"}
    assert {*own, ENGINES, "docs/engines.md"} <= named_in("An engine")
    (tree / "tflaunch/engines/rack.py").write_text(ENGINE)
    insert(tree / "tflaunch" / ENGINES, r"\nENGINES: [^\n]*= \{", '"rack": "tflaunch.engines.rack",')
    (tree / "t.py").write_text("import os\nprint('counted on', os.environ['TFLAUNCH_HOST'])\n")
    (tree / "slots.yaml").write_text("engine: rack\nslots:\n  - {count: 2, shelf: 3}\n")
    options = "--ps 0 --workers 2 --no-flags t.py"
    for printed in typed(tree, f"run rack:2,shelf=3 {options}", f"run slots.yaml {options}"):
        assert "counted on bead0" in printed
        assert "counted on bead1" in printed
    (tree / "slots.yaml").write_text("engine: rack\nslots:\n  - {count: 2, shell: 3}\n")
    words = ("rack:1,shelf=low", "rack:1,shell=3", "rack:0", "slots.yaml")
    low, shell, none, in_a_file = typed(tree, *(f"check {each}" for each in words), code=EXIT_USAGE)
    assert "shelf: 'low' is not a whole number, 1 or more, for example 3" in low
    assert "shell: rack has no such setting; did you mean shelf?" in shell
    assert "0 slots: want 1 to 10,000" in none
    assert "slots.yaml:3:" in in_a_file
    house = "floors_below or in_a_circle"
    run(tree, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-k", house, "tests/unit/test_house.py")


def test_a_fact_that_is_declared_and_found_out_is_everywhere(tree: Path) -> None:
    assert {FACTS, PROBE, "scripts/docs man"} <= named_in("A fact")
    insert(tree / "tflaunch" / FACTS, r"class GpuFacts.*?\n    temperature_c: [^\n]*\n", FACT)
    insert(tree / "tflaunch" / PROBE, r"    gpu\[\"temperature_c\"\] = [^\n]*\n", PROBED)
    assert run(tree, "-c", GPU_TO_JSON, "37") == "37\n"
    assert run(tree, "-c", GPU_TO_JSON, "null") == "None\n"
    wrong = run(tree, "-c", GPU_TO_JSON, "-1", code=1)
    assert "gpus.0.fan_percent is not a whole number: -1" in wrong
    assert "| `fan_percent` | how fast its fan turns |" in run(
        tree / "docs", "-c", "from generator import documents; print(documents.page())"
    )


def test_a_meaning_of_an_end_that_has_its_rule_and_its_case_is_said(tree: Path) -> None:
    assert {"ends/", f"{ENDS_CASES}/logs", "cases.py"} <= named_in("A meaning of an end")
    insert(tree / "tflaunch" / ENDS, r"\nRULES = \(", MEANING)
    logs = tree / ENDS_CASES / "logs"
    logs.mkdir()
    (logs / "bead.log").write_text("abacus: bead row/3 has come off\n")
    case = "\n    'bead': (1, 'worker/1 has lost the bead row/3 on gpu02: thread it again', True),"
    insert(tree / ENDS_CASES / "cases.py", r"\nCASES: [^\n]*", case)
    played = f"{ENDS_CASES}/test_ends.py::test_the_log_of_a_real_failure[bead]"
    run(tree, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", played)


def test_a_rule_of_the_watchdog_that_has_its_file_and_its_line_watches(tree: Path) -> None:
    assert {"diagnosis/rule.py", "diagnosis/", "rules_for", WATCHDOG} <= named_in("A rule of the watchdog")
    (tree / "tflaunch/diagnosis/lost_beads.py").write_text(WATCHING)
    imported = "from tflaunch.diagnosis.lost_beads import LostBeads\n"
    insert(tree / "tflaunch" / WATCHDOG, r"\n(?=from tflaunch\.diagnosis\.lost_packets)", imported)
    insert(tree / "tflaunch" / WATCHDOG, r'"lost_packets": [^\n]*\n', '"lost_beads": LostBeads(watched),\n')
    assert run(tree, "-c", WATCH) == "[]\n['worker/0 on h1 has lost a bead']\n"
    played = ("shipped_imports_only", "made_of_all_shipped_rooms", "in_a_circle")
    words = ("-q", "-n0", "-p", "no:cacheprovider", "-k", " or ".join(played))
    run(tree, "-m", "pytest", *words, "tests/unit/test_house.py")
