"""What ends of tasks lead to: the sentence that is shown, for logs of real failures, whatever a log may say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.code import grow
from tests.unit.ends.cases import CASES
from tests.unit.ends.lines import KNOWN, LINES, SIGNAL_LINES
from tests.unit.ends.public import CASES as PUBLIC
from tests.unit.ends.public import WHERE
from tflaunch.documents.log_tail import lines_to_search
from tflaunch.ends import interpret
from tflaunch.ends.end_rule import (
    AFTERMATH,
    ANYWHERE,
    FINAL,
    STACK,
    EndRule,
    SignalRule,
    alternatives,
    pattern,
)
from tflaunch.ends.here import where_file_lies, where_module_lies
from tflaunch.ends.interpret import meaning
from tflaunch.ends.known_end import Here, KnownEnd, Meaning
from tflaunch.ends.log_end import LONGEST
from tflaunch.ends.tables import RULES, SIGNALS, patterns

LOGS = Path(__file__).with_name("logs")
GIB = 1 << 30
FEW_FILES = (
    "W0000 00:00:1.1 9 a.cc:1] /data/a.tfrecord; Too many open files\n"
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/a.tfrecord'"
)
GIVEN = ("/py", "trainer.py", "--ps_hosts=a:1", "--job_name=worker")


def ending(end: int | str, facts: Mapping[str, Any] | None = None, **other: Any) -> KnownEnd:
    signal = end if isinstance(end, str) else ""
    code = None if signal else int(end)
    return KnownEnd("worker/1", "gpu02", code, signal, 5.0, facts or {}, **other)


def said(text: str, end: int | str = 1, facts: Mapping[str, Any] | None = None, **other: Any) -> Meaning:
    return meaning(lines_to_search(text.encode()), ending(end, facts, **other))


@pytest.mark.parametrize("name", CASES)
def test_the_log_of_a_real_failure(name: str) -> None:
    end, part, cause = CASES[name]
    argv = GIVEN if "given" in name or name == "docopt_ps_hosts" else ()
    found = meaning(lines_to_search((LOGS / f"{name}.log").read_bytes()), ending(end, argv=argv))
    assert part in found.text
    assert bool(part) == bool(found.text)
    assert found.cause == cause
    assert not set("\n{}") & set(
        re.sub(r"\{(job|index|rank|world_size|chief_host|chief_port)\}", "", found.text)
    )


@pytest.mark.parametrize("name", PUBLIC)
def test_words_that_others_have_published(name: str) -> None:
    where, end, words, part = PUBLIC[name]
    assert where in WHERE
    assert part in said(words, end).text


def play(part: str) -> None:
    for line in LINES[part]:
        assert part in said(line, **KNOWN.get(part, {})).text, line


@pytest.mark.parametrize("part", LINES)
def test_lines_that_lead_to_an_advice(part: str) -> None:
    play(part)


def test_every_rule_and_each_of_its_alternatives_has_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """A case of an alternative is a line that the rule would not know without it."""
    used: list[EndRule] = []
    needed: set[str] = set()
    advice = interpret._advice

    def note(rule: EndRule, found: re.Match[str], *rest: Any) -> str:
        used.append(rule)
        fit = [each for each in alternatives(rule.words) if re.search(each, found.string)]
        needed.update(fit if len(fit) == 1 else ())
        return advice(rule, found, *rest)

    monkeypatch.setattr(interpret, "_advice", note)
    for name in CASES:
        test_the_log_of_a_real_failure(name)
    for name in PUBLIC:
        test_words_that_others_have_published(name)
    for facts, line, end in WITH_FACTS:
        said(line, end, **facts)
    for part in LINES:
        play(part)
    assert not [pattern(rule.words) for rule in RULES if rule not in used]
    assert not [each for rule in RULES for each in alternatives(rule.words) if each not in needed]


def test_an_alternative_of_a_signal_has_a_case() -> None:
    for advice, lines in SIGNAL_LINES.items():
        (rule,) = [each for each in SIGNALS if each.words and each.advice.startswith(advice)]
        for line, words in zip(lines, alternatives(rule.words), strict=True):
            assert said(line, rule.signal).text.startswith(advice), line
            assert [each for each in alternatives(rule.words) if re.search(each, line)] == [words]
    assert len(SIGNAL_LINES) == len([rule for rule in SIGNALS if rule.words])


def test_no_pattern_is_written_twice() -> None:
    written = [
        found
        for path in Path(interpret.__file__).parent.glob("*.py")
        for found in re.findall(r'\brf?("(?:[^"\\]|\\.){3,}")', path.read_text("utf-8"))
    ]
    assert len(written) > 800
    assert not {each for each in written if written.count(each) > 1}


@pytest.mark.parametrize(
    "line",
    [
        FEW_FILES,
        "ImportError: libcuda.so.1: cannot open shared object file: Too many open files",
        "OSError: [Errno 24] Unable to open file (unable to open file: name = '/d/x.h5', errno = 24)",
    ],
)
def test_where_no_descriptor_is_left_no_path_is_blamed(line: str) -> None:
    assert said(line, facts={"open_files": 77}).text.startswith("worker/1 may open 77 files at once on gpu02")
    assert said(line).text.startswith("worker/1 has more files open than gpu02 allows")
    gone = said(
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/a.tfrecord'", facts={"open_files": 77}
    )
    assert gone.text.startswith("/data/a.tfrecord is not on gpu02")


def test_a_gpu_by_number_where_the_task_has_none() -> None:
    line = "ValueError: /job:worker/task:0/device:GPU:1 unknown device."
    assert "worker/1 was given none: gpu02 has no GPU, or none that was free" in said(line, gpus=0).text
    assert "each task sees only the GPUs it was given" in said(line, gpus=1).text


@pytest.mark.parametrize(
    "line",
    [
        "t.py: error: unrecognized arguments: --lrr=0.1",
        "t.py: error: argument --lr: invalid float value: 'abc'",
        "t.py: error: argument --opt: invalid choice: 'x' (choose from 'adam')",
    ],
)
def test_the_arguments_of_a_trial_stand_in_the_options_of_its_sweep(line: str) -> None:
    of_sweep = meaning([line], KnownEnd("trial/1", "gpu02", 2))
    assert "correct it in --grid, --random or --trials-file, or after --" in of_sweep.text
    assert "correct it after --" in said(line, 2).text


def test_all_cluster_flags_by_other_names_are_named() -> None:
    line = "t.py: error: unrecognized arguments: --worker_hosts=a:1 --job_name=worker --task_index=0"
    assert "--flag ps_hosts=NAME, and so on for worker_hosts, job_name and task_index" in said(line, 2).text


FULL = {"disks": [{"path": "/data", "free_bytes": 0, "free_files": 5}]}
ROOMY = {"peak_bytes": GIB, "memory_bytes": 24 * GIB, "memory_available_bytes": 19 * GIB}
NO_FILES = {"disks": [{"path": "/data", "free_bytes": GIB, "free_files": 0}]}
NO_SPACE = "OSError: [Errno 28] No space left on device"
REFUSED = "UnavailableError: failed to connect to all addresses; last error: Connection refused"
# What needs facts: (arguments of `said`, the line, the end)
WITH_FACTS: list[tuple[dict[str, Any], str, int | str]] = [
    ({"argv": GIVEN}, "t.py: error: the following arguments are required: --worker-hosts", 2),
    (
        {"argv": GIVEN},
        "FATAL Flags parsing error: flag --ps_hosts=None: Flag --ps_hosts must have a value",
        1,
    ),
    ({"facts": ROOMY}, "MemoryError", 1),
    ({"facts": {"open_files": 77}}, "OSError: [Errno 24] Too many open files: 'x'", 1),
    ({"facts": {"open_files": 77}}, "W0000 00:00:1.1 9 a.cc:1] d.txt; Too many open files\nit ended", 1),
    ({}, "W0000 00:00:1.1 9 a.cc:1] d.txt; Too many open files\nit ended", 1),
    ({"facts": {"open_files": 77}}, FEW_FILES, 1),
    ({}, FEW_FILES, 1),
    ({"gpus": 0}, "ValueError: /job:worker/task:0/device:GPU:1 unknown device.", 1),
    ({"facts": FULL}, NO_SPACE, 1),
    ({"facts": NO_FILES}, NO_SPACE, 1),
    ({"facts": FULL}, "W0000 00:00:1.1 9 a.cc:1] No space left on device\nit ended", 1),
    ({}, "W0000 00:00:1.1 9 a.cc:1] No space left on device\nit ended", 1),
    (
        {"env": {"MASTER_ADDR": "a"}},
        "E: The server socket has failed to listen on any local address: EADDRINUSE",
        1,
    ),
    (
        {
            "facts": {"packages": {"tensorflow": "2.15"}},
            "others": {"b": {"packages": {"tensorflow": "2.21"}}},
        },
        "E0000 00:00:1.1 9 a.cc:1] the peer uses a different version\nit ended",
        1,
    ),
    ({"port": 2173}, "OSError: [Errno 98] error while attempting to bind on address ('::', 2173)", 1),
    ({}, REFUSED, 1),
    ({"done": ("worker/0",)}, "UnavailableError: x\nCollective ops is aborted by: Socket closed", 1),
    ({}, "failed to connect to all addresses", 1),
]


def test_numbers_of_the_host_are_in_the_advice() -> None:
    files = "OSError: [Errno 24] Too many open files: 'x'"
    assert "worker/1 may open 77 files at once on gpu02" in said(files, facts={"open_files": 77}).text
    assert "the disk of /data has 0 B left" in said(NO_SPACE, facts=FULL).text
    assert "room for no more files" in said(NO_SPACE, facts=NO_FILES).text
    assert "`df -h; df -i; quota`" in said(NO_SPACE).text
    memory = {"peak_bytes": 3 * GIB, "memory_bytes": 4 * GIB}
    assert (
        "gpu02 (4.0 GiB) was not enough for worker/1 (3.0 GiB at its peak)"
        in said("MemoryError", facts=memory).text
    )


START = (
    'Traceback (most recent call last):\n  File "/r/work/train.py", line 7, in encode\n    subprocess.run([CONVERT])\n'
    '  File "/usr/lib/python3.12/subprocess.py", line 1955, in _execute_child\n    raise error\n'
)
OPEN = 'Traceback (most recent call last):\n  File "/r/work/train.py", line 7, in save\n    open(path, "w")\n'


@pytest.mark.parametrize(
    "path", ["bin/convert", "/var/tmp/tflaunch-1000/train-abc123/gpu02/work/bin/convert", "tools/convert.py"]
)
def test_what_may_not_be_started_is_told_from_what_may_not_be_written(path: str) -> None:
    line = f"PermissionError: [Errno 13] Permission denied: '{path}'"
    started = said(START + line).text
    assert started.startswith(f"worker/1 may not start {path} on gpu02")
    assert "chmod +x it here" in started
    for text in (OPEN + line, line):
        assert said(text).text.startswith(f"the user of worker/1 may not use {path} on gpu02: `ls -ld` there")


def test_a_task_that_is_refused_memory_where_there_is_enough() -> None:
    text = said("MemoryError", 1, ROOMY).text
    assert text.startswith(
        "worker/1 was refused memory on gpu02, though it had used only 1.0 GiB of 24 GiB: "
    )
    for facts in ({"peak_bytes": 20 * GIB}, {"memory_available_bytes": GIB}, {"memory_limit": 2 * GIB}):
        assert "was not enough for worker/1" in said("MemoryError", 1, {**ROOMY, **facts}).text


def test_a_kill_is_told_as_the_kernel_counted_it() -> None:
    memory = {
        "peak_bytes": 3 * GIB,
        "memory_bytes": 4 * GIB,
        "memory_available_bytes": GIB,
        "memory_limit": GIB,
    }
    host = said("step 1", "SIGKILL", {**memory, "oom_kills": 2, "oom_kills_cgroup": 0}).text
    assert "the memory of gpu02 (4.0 GiB) ran out: the kernel killed 2 processes there" in host
    limited = said("step 1", "SIGKILL", {**memory, "oom_kills": 1, "oom_kills_cgroup": 1}).text
    assert "the memory limit of its cgroup (1.0 GiB) is reached" in limited
    near = {**memory, "memory_limit": 0, "oom_kills": 0}
    assert "came near to the 4.0 GiB" in said("step 1", "SIGKILL", near).text
    far = {**memory, "peak_bytes": 1 << 20, "oom_kills": 0}
    assert "the kernel counts no oom_kill there since the start" in said("step 1", "SIGKILL", far).text
    assert "dmesg" in said("step 1", "SIGKILL").text, "an older agent tells no facts"


def test_signals_are_told_by_the_processor_and_by_shared_memory() -> None:
    old = said("Fatal Python error: Illegal instruction", "SIGILL", {"cpu": ["sse4_1", "sse4_2"]}).text
    assert "the processor of gpu02 has no avx (it has sse4_1, sse4_2)" in old
    assert "has no avx2" in said("x", "SIGILL", {"cpu": ["avx"]}).text
    full = {"shm_bytes": 64 << 20, "shm_free_bytes": 4096}
    assert "/dev/shm of gpu02 (64 MiB) is full" in said("x", "SIGBUS", full).text
    assert "the disk of /data has 0 B left" in said("x", "SIGBUS", FULL).text
    assert "/dev/shm of gpu02 (64 MiB) is full" in said("x", 128 + 7, full).text, (
        "as a shell or a container says it"
    )
    assert said("ValueError: x", 128 + 7, full).text, "also without a traceback"


def test_who_sent_sigusr1_is_told() -> None:
    told = "--warn-before sent SIGUSR1 to worker/1"
    assert said("step 1", "SIGUSR1", {"warned": True}).text.startswith(told)
    assert said("step 1", 128 + 10, {"warned": True}).text.startswith(told), "as a container says it"
    assert "SLURM sends it" in said("step 1", "SIGUSR1", {"warned": False}).text
    assert told not in said("step 1", 128 + 10).text


def test_every_signal_has_advice() -> None:
    for rule in SIGNALS:
        assert isinstance(rule, SignalRule)
        assert said("nothing", rule.signal).text
    assert "std::bad_alloc" in said("terminate called\n  what():  std::bad_alloc", "SIGABRT").text
    assert (
        "forked"
        in said(
            "E fork_posix.cc: Other threads are currently calling into gRPC, skipping fork()", "SIGABRT"
        ).text
    )
    assert "check of TensorFlow" in said("F0101 tensor.cc:1] Check failed: x", "SIGABRT").text


def test_what_a_host_says_cannot_command_the_terminal() -> None:
    evil = "\x1b[2J\n" * 9
    facts = {"disks": [{"path": evil, "free_bytes": 0, "free_files": 1}], "cpu": [evil], "python": evil}
    facts["packages"] = {"tensorflow": evil, evil: evil}
    others = {"gpu01": {"packages": {"tensorflow": "2.21"}}}
    for words, end in ((NO_SPACE, 1), ("x", "SIGILL"), ("Op type not registered 'A'", 1), ("SyntaxError", 1)):
        assert not set("\x1b\n") & set(said(words, end, facts, others=others).text)


def test_versions_that_differ_between_hosts_are_named() -> None:
    here = {"python": "3.10.2", "packages": {"tensorflow": "2.15.1", "numpy": "1.26.4"}}
    there = {"python": "3.11.7", "packages": {"tensorflow": "2.21.0", "numpy": "1.26.4"}}
    text = said(
        "tensorflow.python.framework.errors_impl.NotFoundError: Op type not registered 'NewOp' in binary",
        facts=here,
        others={"gpu01": there, "gpu03": there},
    ).text
    assert "tensorflow is 2.21.0 on gpu[01,03], 2.15.1 on gpu02" in text
    assert "numpy" not in text
    assert (
        "Python is 3.10 on gpu02, 3.11 on gpu01"
        in said("odd words", facts=here, others={"gpu01": there}).text
    )


def test_the_cluster_flags_are_not_advised_in_a_circle() -> None:
    line = "t.py: error: the following arguments are required: --worker-hosts"
    assert "--flags passes them" in said(line, 2).text
    assert "--flags passes them" not in said(line, 2, argv=GIVEN).text
    assert "--flag ps_hosts=NAME" in said(line, 2, argv=GIVEN).text
    assert "GRPC_FAIL_FAST=false" in said(REFUSED).text
    assert "GRPC_FAIL_FAST" not in said(REFUSED, env={"GRPC_FAIL_FAST": "false"}).text


TRACE = (
    'Traceback (most recent call last):\n  File "/x/run/gpu02/work/train.py", line 7, in load\n    open()\n'
)


def test_a_traceback_that_was_survived_is_no_cause() -> None:
    lost = TRACE + "ModuleNotFoundError: No module named 'x'\n"
    assert "has no x" in said(lost).text
    assert not said(lost + "step 1 loss 0.5\n" * 30 + "giving up\n", 3).text
    assert not said(lost + "step 1 loss 0.5\n" * 3 + "giving up\n", 3).text
    assert not said(lost + "step 1 loss 0.5\n" * 30, 1).text
    assert "no lack of memory" in said(lost, "SIGKILL", {"oom_kills": 0}).text
    later = lost + "step 1 loss: 0.5\n" * 3 + TRACE + "RecursionError: x\n"
    assert "calls itself without end at train.py:7 in load()" in said(later).text


def test_the_first_of_chained_errors_counts_where_the_last_says_nothing() -> None:
    chain = TRACE + "ModuleNotFoundError: No module named 'x'\n\n"
    chain += "The above exception was the direct cause of the following exception:\n\n"
    assert "has no x" in said(chain + TRACE + "MyOwnTrouble: cannot start\n").text
    assert "the line" not in said(chain + TRACE + "RecursionError: x\n").text
    assert "it failed at train.py:7 in load()" in said(TRACE + "MyOwnTrouble: cannot start\n").text


def test_a_log_chooses_a_rule_and_says_nothing_itself() -> None:
    assert not said("ModuleNotFoundError: No module named '{host.__class__}").text
    assert "rm -rf" not in said("ModuleNotFoundError: No module named 'x; rm -rf ~'").text
    assert "m" * 81 not in said(f"ModuleNotFoundError: No module named '{'m' * 500}'").text
    assert not said("we have No module named 'x' but go on").text
    assert not said("").text
    assert not said("all went well", 0).text


def test_hostile_lines_take_no_time() -> None:
    """Each pattern on lines that make it try often; were one exponential, this would not end."""
    starts = [
        "unrecognized arguments: ",
        "--ps_host ",
        "a: ",
        "ckpt",
        "_temp",
        "- ",
        "FileNotFoundError: '",
        "NotFoundError: ",
    ]
    lines = [(start * 1000)[:1000] for start in starts] + [
        "a" * 1000,
        "a." * 500,
        "UNAVAILABLE " * 80,
        "CUDA error " * 90,
    ]
    for compiled, _ in (each for where in (FINAL, STACK, ANYWHERE, AFTERMATH) for each in patterns(where)):
        for line in lines:
            assert len(line) <= LONGEST
            compiled.search(line)


def test_a_module_that_lies_here_is_named_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ("train/trainer.py", "train/secret.py", "train/data/x.csv", "train/pkg/mod.py", "lib/__init__.py")
    grow(tmp_path, {f"proj/{name}": "" for name in (*files, "train/deep/down/low.py")})
    monkeypatch.chdir(tmp_path / "proj/train")
    train, proj = tmp_path / "proj/train", tmp_path / "proj"
    assert where_module_lies("secret", train, "trainer.py") == (
        f"secret lies in {train} and did not come to the hosts: --ship secret.py ships it"
    )
    assert "--ship pkg/mod.py" in where_module_lies("pkg.mod", train, "trainer.py")
    assert "--env PYTHONPATH=deep/down finds it" in where_module_lies("low", train, "trainer.py")
    assert "--code-dir .. --env PYTHONPATH=." in where_module_lies("lib", train, "trainer.py")
    assert "--ship train/secret.py" in where_module_lies("secret", proj, "train/trainer.py")
    assert "--env PYTHONPATH=. finds it" in where_module_lies("lib", proj, "train/trainer.py")
    for module in ("tensorflow", "data", "pkg.other", "lib.more"):
        assert where_module_lies(module, train, "trainer.py") == ""
    here = Here(lambda name: where_module_lies(name, train, "trainer.py"))
    assert meaning(["E: No module named lib"], ending(1), here).text.startswith(f"lib lies in {proj}")


def test_a_file_that_an_ignore_rule_kept_here_is_named_with_the_rule(tmp_path: Path) -> None:
    grow(
        tmp_path, {"data/train.csv": "", "t/trainer.py": "", "t/own.csv": "", ".gitignore": "*.log\n/data/\n"}
    )
    (tmp_path / ".git").mkdir()
    told = where_file_lies("data/train.csv", tmp_path, "t/trainer.py", "gpu02")
    assert "by .gitignore line 2 (`/data/`): --ship data/train.csv ships it" in told
    on_host = "/var/tmp/tflaunch-0/run-a/gpu02/work/data/train.csv"
    assert where_file_lies(on_host, tmp_path, "t/trainer.py", "gpu02") == told
    assert "Path(__file__).parent" in where_file_lies("own.csv", tmp_path, "t/trainer.py", "gpu02")
    absolute = str(tmp_path / "data")
    assert f"{absolute} is on this machine, and not on gpu02" in where_file_lies(
        absolute, tmp_path, "t/trainer.py", "gpu02"
    )
    for path in ("data/none.csv", "/nowhere/at/all", "../none"):
        assert where_file_lies(path, tmp_path, "t/trainer.py", "gpu02") == ""


def test_a_path_that_a_host_names_mounts_nothing_and_asks_for_no_hidden_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(tmp_path, {"code/trainer.py": "", ".ssh/id": ""})
    touched: list[str] = []
    monkeypatch.setattr("os.path.lexists", lambda path: bool(touched.append(path)) or True)
    hidden = str(tmp_path / ".ssh/id")
    up = "../" * 40
    for path in (hidden, "/net/evil/x", "//net/evil/x", f"{up}net/evil/x", f"{up}dev/nvidia0", "../.ssh/id"):
        assert where_file_lies(path, tmp_path / "code", "trainer.py", "gpu02") == ""
    assert touched == []
    assert where_file_lies("/data/x", tmp_path / "code", "trainer.py", "gpu02") != ""


def test_a_module_whose_name_no_file_can_have(tmp_path: Path) -> None:
    assert where_module_lies("\U00010400" * 80, tmp_path, "trainer.py") == ""


@pytest.mark.parametrize("done", [(), ("worker/0",)])
def test_a_peer_that_ended_well_before_is_named_for_a_collective_that_broke(done: tuple[str, ...]) -> None:
    log = [
        "tensorflow.python.framework.errors_impl.UnavailableError: Graph execution error:",
        "Collective ops is aborted by: Socket closed",
        "The error could be from a previous operation. Restart your program to reset.",
    ]
    said = meaning(log, ending(1, done=done))
    assert said.cause == bool(done)
    assert said.text.startswith("worker/0 had ended with 0, and worker/1 still") == bool(done)


def test_the_tasks_own_port_is_told_from_others() -> None:
    words = "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', {}): address already in use"
    own = said(words.format(21873), port=21873).text
    assert own.startswith("21873 on gpu02 is the port of worker/1 itself, which its agent holds for it")
    for port in (2187, 121873):
        assert said(words.format(21873), port=port).text.startswith(
            "a port is taken on gpu02: one that the program"
        )


def test_how_much_of_a_log_is_searched_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host chooses what is in it: 64 KiB of long lines must not keep the launcher busy for seconds."""
    searched: dict[str, int] = {}

    class Searched:
        def __init__(self, where: str) -> None:
            self.where = where

        def search(self, line: str) -> None:
            searched[self.where] = searched.get(self.where, 0) + len(line)

    monkeypatch.setattr(interpret, "patterns", lambda where: [(Searched(where), EndRule("", "", where))])
    said("x" * 999 + "\n" + ("y" * 999 + "\n") * 65)
    assert set(searched) == {"final", "anywhere", "aftermath"}
    assert max(searched.values()) <= interpret._SEARCHED
    searched.clear()
    said("short\nlines\n" * 40)
    assert searched["final"] > 100


def test_a_task_whose_log_lies_on_a_disk_that_turned_read_only() -> None:
    told = said("step 7", facts={"read_only": "/var/tmp/tflaunch-0/run/gpu02/logs"})
    assert told.text.startswith(
        "the disk of /var/tmp/tflaunch-0/run/gpu02/logs on gpu02, where worker/1's log lies, has become read-only"
    )
    assert said("step 7").text == ""


ILLEGAL = "CUDA error: an illegal memory access was encountered"


def test_a_task_that_died_of_a_sick_card() -> None:
    for text, end in ((ILLEGAL, 1), ("step 7", "SIGABRT"), ("", 1)):
        found = said(text, end, facts={"xids": [[0, 31], [3, 79], [3, 45]]})
        assert found.cause
        assert found.text == (
            "GPU 3 of gpu02 has told of Xid 79 (it has fallen off the bus): the card, or what it is plugged into, is at"
            " fault, not the program; --exclude gpu02:3 goes on without it, until it is reset or its host restarted;"
            " where the Xid comes again, it wants another card"
        )


def test_a_task_that_died_of_a_kernel_of_its_own() -> None:
    facts = {"xids": [[0, 43], [0, 31], [0, 45]]}
    told = "GPU 0 of gpu02 has told of Xid 31 (a kernel has used memory that is not its own)"
    assert said(ILLEGAL, facts=facts).text.endswith(f"so --exclude gpu02; {told}")
    alone = said("step 7", facts=facts)
    assert (alone.text, alone.cause) == (
        f"{told}: --env CUDA_LAUNCH_BLOCKING=1 shows the line of the program",
        True,
    )


def test_xids_that_need_not_be_why_a_task_failed() -> None:
    text = "FileNotFoundError: [Errno 2] No such file or directory: '/data/a.tfrecord'"
    found = said(text, facts={"xids": [[3, 63]]}).text
    told = "GPU 3 of gpu02 has told of Xid 63 (a bad row of its memory is replaced at its next reset)"
    assert found == f"{said(text).text}; {told}"
    assert said("step 7", facts={"xids": [[3, 45]]}).text == "", "it comes with every signal"
    unknown = said("step 7", facts={"xids": [[3, 999]]})
    assert unknown.text == (
        "GPU 3 of gpu02 has told of Xid 999, which https://docs.nvidia.com/deploy/xid-errors explains"
    )
    for alone in (unknown, said("step 7", facts={"xids": [[3, 63]]})):
        assert not alone.cause, "another task's end may tell more"
