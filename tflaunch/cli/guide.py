"""What the help shows first, as data: the verbs in groups, a line and three examples for each.

The reference in the documentation is made from these tables, too.  A test gives every example to the real parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Example(NamedTuple):
    """A command that works, and what it does."""

    command: str
    does: str


class Guide(NamedTuple):
    """What a reader needs first of a verb."""

    summary: str  # in a list of verbs
    examples: tuple[Example, ...]


ABOUT = "Start distributed TensorFlow on machines that have SSH and Python, and leave nothing behind."

FIRST_STEPS = (
    Example("tflaunch init gpu01 gpu02", "write hosts.yaml: what these machines have"),
    Example("tflaunch gpus", "their GPUs: which are free, who uses the others"),
    Example("tflaunch run trainer.py", "train: one worker on each free GPU"),
)

GROUPS: Mapping[str, Mapping[str, Guide]] = {
    "Run": {
        "run": Guide(
            "Start a training program on the hosts, and show what it prints",
            (
                Example("tflaunch run hosts.yaml trainer.py", "one worker per free GPU"),
                Example("tflaunch run trainer.py --workers 4 -- --epochs 3", "--epochs is the trainer's"),
                Example("tflaunch run hosts.yaml trainer.py --dry-run", "show what would start where"),
            ),
        ),
        "rerun": Guide(
            "Start once more what a run on record has started",
            (
                Example("tflaunch rerun", "what ran last from this machine"),
                Example("tflaunch rerun mnist-4f2a9c --workers 8", "that run, with more workers"),
                Example("tflaunch rerun mnist-4f2a9c -- --epochs 30", "with other arguments for the program"),
            ),
        ),
        "sweep": Guide(
            "Run it once for each set of values, and compare the results",
            (
                Example(
                    "tflaunch sweep hosts.yaml trainer.py --grid lr=0.1,0.01 --metric loss",
                    "a trial for each value; the smallest loss is the best",
                ),
                Example(
                    "tflaunch sweep trainer.py --random lr=1e-4..0.1:log --trials 20 --metric loss",
                    "20 values, drawn at random",
                ),
                Example("tflaunch sweep --resume trainer-sweep-4f2a9c", "go on where it stopped"),
            ),
        ),
        "tune": Guide(
            "Find the fastest layout: how many ps and workers, where",
            (
                Example(
                    "tflaunch tune hosts.yaml trainer.py", "1, 2, 4, ... ps, measured for some seconds each"
                ),
                Example(
                    "tflaunch tune trainer.py --ps 1,2 --workers 2,4 --steps 500", "four layouts, 500 steps"
                ),
                Example("tflaunch tune trainer.py --ps 1,2,4 --dry-run", "show the layouts, start nothing"),
            ),
        ),
        "up": Guide(
            "Start TensorFlow servers, with no program of yours",
            (
                Example("tflaunch up hosts.yaml --workers 4", "4 servers on these hosts"),
                Example("tflaunch up --ps 1 --workers 4 --spec cluster.json", "the cluster spec as a file"),
                Example("tflaunch up gpu01,gpu02 --foreground", "stay; Ctrl-C stops them"),
            ),
        ),
    },
    "Watch": {
        "ps": Guide(
            "List the runs that are alive, or all",
            (
                Example("tflaunch ps", "your runs that are alive"),
                Example("tflaunch ps -a", "also those that have ended"),
                Example("tflaunch ps --hosts gpu01,gpu02 --quiet", "only the ids, on these hosts"),
            ),
        ),
        "status": Guide(
            "Show all about one run: tasks, hosts, what failed first",
            (
                Example("tflaunch status", "the only run alive, else the newest"),
                Example("tflaunch status mnist", "that run: its name, id, or the first letters"),
                Example("tflaunch status mnist --json", "the same for programs"),
            ),
        ),
        "attach": Guide(
            "Watch a run that is alive, from any machine",
            (
                Example("tflaunch attach", "the only run alive; Ctrl-C leaves it"),
                Example("tflaunch attach mnist --tail 20", "from the last 20 lines of each task on"),
                Example("tflaunch attach mnist --only worker/0", "only what that task prints"),
            ),
        ),
        "logs": Guide(
            "Print what the tasks have printed",
            (
                Example("tflaunch logs", "the only run alive, else the newest"),
                Example("tflaunch logs mnist worker/0 --tail 50", "the last 50 lines of one task"),
                Example("tflaunch logs mnist --follow --grep loss", "new lines with loss, as they come"),
            ),
        ),
        "top": Guide(
            "Watch what the tasks use, with graphs, on a terminal",
            (
                Example("tflaunch top", "the only run alive; q quits, ? shows the keys"),
                Example("tflaunch top mnist --interval 2", "look every 2 seconds"),
                Example("tflaunch top mnist --hosts hosts.yaml", "from a machine that did not start it"),
            ),
        ),
        "report": Guide(
            "Show what a run did: what stands out, when, what each task used",
            (
                Example("tflaunch report", "the newest run"),
                Example("tflaunch report mnist --html mnist.html", "a page with curves, for a browser"),
                Example("tflaunch report mnist-4f2a9c mnist-7d01be", "two runs side by side"),
            ),
        ),
        "stacks": Guide(
            "Show where each task's Python is just now",
            (
                Example("tflaunch stacks", "all tasks of the only run alive"),
                Example("tflaunch stacks mnist worker/0", "one task"),
                Example("tflaunch stacks mnist --all-threads", "every thread in full"),
            ),
        ),
        "profile": Guide(
            "Take a trace of what TensorFlow does just now, for TensorBoard",
            (
                Example("tflaunch profile", "2 seconds of the only run alive"),
                Example("tflaunch profile mnist worker/0 ps/0 --seconds 5", "longer, of two tasks"),
                Example("tflaunch profile mnist --to logs", "below the directory logs"),
            ),
        ),
        "detach": Guide(
            "Let a run go on without its launcher",
            (
                Example("tflaunch detach", "the only run alive"),
                Example("tflaunch detach mnist", "that run: its name, id, or the first letters"),
                Example("tflaunch detach mnist --hosts hosts.yaml", "from another machine"),
            ),
        ),
        "tensorboard": Guide(
            "Show a run in TensorBoard",
            (
                Example("tflaunch tensorboard", "the only run alive, else the newest"),
                Example("tflaunch tensorboard mnist runs/train", "that directory of the run"),
                Example("tflaunch tensorboard mnist --port 6006", "at that port of this machine"),
            ),
        ),
        "fetch": Guide(
            "Copy what a run has written to this machine",
            (
                Example("tflaunch fetch", "the only run alive, else the newest"),
                Example("tflaunch fetch mnist 'checkpoints/**'", "what that pattern matches"),
                Example("tflaunch fetch mnist --to results", "into results/ instead of ./RUN"),
            ),
        ),
    },
    "Hosts and GPUs": {
        "init": Guide(
            "Write a hostfile of these machines, and what they have",
            (
                Example("tflaunch init gpu01 gpu02", "write hosts.yaml"),
                Example("tflaunch init 'gpu[01-16]' -o lab.yaml", "16 hosts, another file"),
                Example("tflaunch init 'gpu*'", "those of ~/.ssh/config"),
            ),
        ),
        "gpus": Guide(
            "Show the GPUs: which are free, who uses the others",
            (
                Example("tflaunch gpus", "the hosts of the default hostfile"),
                Example("tflaunch gpus --free --gpu-model H100", "only those that nobody uses"),
                Example("tflaunch gpus hosts.yaml --watch", "again every 2 s, until Ctrl-C"),
            ),
        ),
        "check": Guide(
            "Find what would make a run fail there",
            (
                Example("tflaunch check", "would a run start on your hosts?"),
                Example("tflaunch check hosts.yaml --strict", "warnings count as errors"),
                Example("tflaunch check gpu01,gpu02 --bandwidth", "also measure the network between them"),
            ),
        ),
    },
    "Tidy up": {
        "stop": Guide(
            "End a run on all its hosts",
            (
                Example("tflaunch stop", "the only run alive, or ask which"),
                Example("tflaunch stop mnist", "that run: its name, id, or the first letters"),
                Example("tflaunch stop mnist --grace 2m", "with time to write a checkpoint"),
            ),
        ),
        "clean": Guide(
            "Remove what old runs have left",
            (
                Example("tflaunch clean --dry-run", "show what would go, remove nothing"),
                Example("tflaunch clean --older 3d --keep-last 5", "unused for 3 days, not the newest 5"),
                Example("tflaunch clean mnist-4f2a9c", "that run"),
            ),
        ),
    },
    "More": {
        "config": Guide(
            "Show what the configuration files say",
            (
                Example("tflaunch config", "each value, with the file and line that it comes from"),
                Example("tflaunch config --json", "the same for programs"),
                Example("tflaunch config --json > config.json", "kept in a file"),
            ),
        ),
        "schema": Guide(
            "Print the JSON Schema of a hostfile, job file or configuration",
            (
                Example("tflaunch schema", "of a hostfile"),
                Example("tflaunch schema job", "of a job file"),
                Example("tflaunch schema hosts > hosts.schema.json", "for an editor that checks YAML"),
            ),
        ),
        "help": Guide(
            "Show the help of a command",
            (
                Example("tflaunch help", "all commands"),
                Example("tflaunch help run", "the same as tflaunch run --help"),
                Example("tflaunch help gpus", "options, examples and exit codes of tflaunch gpus"),
            ),
        ),
    },
}

GUIDE: Mapping[str, Guide] = {verb: guide for verbs in GROUPS.values() for verb, guide in verbs.items()}
