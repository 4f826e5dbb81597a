"""How each command of the pages is run, by its text alone, wherever it stands.

A command that nothing here names is run as it stands and must succeed.  So a new command needs an entry only if it
cannot be run here in seconds (`NOT_RUN`), does not end by itself (`UNTIL`), needs something first (`FIRST`), or ends
with another code than 0 (`CODES`).  Each entry is a regular expression that the whole command must match, without its
comment; the first that matches counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.docs.world import World

# What cannot be run here, and why.  tflaunch's own words in it are still read by its parser (tests/unit/test_pages.py).
NOT_RUN: tuple[tuple[str, str], ...] = (
    (r"scripts/demo", "installs TensorFlow and trains: tests/examples trains the same program"),
    (
        r"scripts/(test|bench|faults|attack|fuzz|diagnosis|check|docs|pictures|setup)\b.*",
        "takes minutes, or is this test",
    ),
    (r"\.ci/run", "is this test"),
    (r"python3 -m venv ~/tflaunch .*", "installs from a package index"),
    (r"(pipx|uv|pip|python3? -m pip) .*", "installs from a package index"),
    (r"git clone .*", "needs a network"),
    (r"(export|cd|mkdir|man|apt|sudo|conda (?:create|pack|run)) ?.*", "prepares a reader's own machine"),
    (r"python3 trainer\.py --ps_hosts=.*", "is what a task is started as, not what a reader types"),
    (r"python -m tests\.support\.bed 4", "gives a prompt: tests/runs/test_bed.py makes such hosts"),
    (
        r".*(--container |boxes\.yaml).*",
        "downloads an image: tests/runs/test_containers.py runs tasks in one",
    ),
    (r".*behind\.yaml.*|ssh .*\bbastion", "tests/docs/test_recipes.py does it behind a bastion"),
    (r"tflaunch stop --all", "asks first, and would end what other commands need: tests/runs/test_stop.py"),
    (r"tflaunch .*\bspark:.*", "needs a Spark: tests/engines/test_spark.py has one"),
    (r"tflaunch tune .*", "measures for a minute: tests/runs/test_tune.py does it on a bed"),
    (r"python examples/spark_kmeans\.py", "needs a Spark: tests/examples/test_spark_kmeans.py has one"),
    (r"tflaunch .*\bk8s:.*", "needs a Kubernetes: tests/engines/test_kubernetes.py has one"),
    (r"tflaunch .*\byarn:.*", "needs a YARN: tests/engines/test_yarn.py has one"),
    (r"(kinit|hdfs dfs .*|yarn node -list)", "needs a Hadoop: tests/engines/test_hdfs.py has one"),
    (r"yarn (logs|application) .*", "needs a YARN: tests/engines/test_yarn.py has one"),
    (r"tflaunch .*\bslurm:.*", "needs a Slurm: tests/engines/test_slurm.py has one"),
    (r".*nodes\.yaml.*", "tests/docs/test_recipes.py does it on sixteen hosts"),
    (r"tflaunch top\b.*", "draws on a terminal of its own: tests/runs/test_top.py has one"),
    (r"tflaunch profile\b.*", "needs a TensorFlow that trains: tests/runs/test_profile.py"),
    (
        r"tflaunch run hosts\.yaml (fit|loop)\.py .*",
        "trains by TensorFlow: tests/examples/test_from_one_machine_to_two.py does it",
    ),
    (r".*examples/data_service\.py.*", "loads TensorFlow seven times: tests/examples/test_data_service.py"),
)

# What goes on until Ctrl-C, and what it has said by then.
UNTIL: tuple[tuple[str, str], ...] = (
    (r"tflaunch attach.*", r"epoch 3"),
    (r"tflaunch logs .*-f\b.*", r"epoch 3"),
    (r"tflaunch gpus .*--watch.*", r"gpu03"),
    (r"tflaunch tensorboard .*", r"http://127\.0\.0\.1:\d+"),
)

# What a command needs.
FIRST: tuple[tuple[str, Callable[[World], object]], ...] = (
    (r"tflaunch init .*", World.without_hostfile),
    (r"tflaunch gpus lab\.yaml", World.busy),
    (r"tflaunch rerun .*", World.ended),
    (r"tflaunch report \S+ \S+-\w+", World.compared),
    (r"tflaunch report.*", World.ended),
    (r"tflaunch clean [a-z]\w*-.*", World.ended),
    (r"tflaunch run .*--ship results.*", World.fetched),
    (r".* run\.jsonl.*json\.tool", World.reported),
    (r"tflaunch (attach|logs|status|stacks|stop|fetch|tensorboard)\b.*", World.alive),
    (r"tflaunch sweep .*--resume.*", World.sweep),
)

CODES: tuple[tuple[str, tuple[int, ...]], ...] = (
    (r"tflaunch run lab\.yaml .*--workers 28", (65,)),  # GPUs of two models
    (r".*--include gpu02:0,1", (0, 65)),  # another page's run may have one of them
    (r"tflaunch attach.*", (0, 130)),  # Ctrl-C only stops watching
    (r"tflaunch logs .*-f\b.*", (0, 130)),
    (r"tflaunch gpus .*--watch.*", (0, 130)),
    (r"tflaunch tensorboard .*", (0, 130)),
    (
        r"tflaunch check( hosts\.yaml)?( --bandwidth| --strict)?",
        (70,),
    ),  # simulated GPUs: TensorFlow sees none of them
)

# Sentences that pages show without the command that makes them: those that tests/docs/test_shown.py makes ...
SHOWN: tuple[str, ...] = (
    r"✓ shipped \d+ files",
    r"! \S+ cannot be reached",
    r"\S+  cannot reach \S+ at",
    r"✗ \S+ on \S+ exited with code \d+ after .* its last lines",
    r"✗ \S+ failed after",
    r"→ \S+ is here in \S+, and was not shipped",
)
# ... and those that other tests make, or that take too long to make for a page.
SHOWN_ELSEWHERE: tuple[tuple[str, str], ...] = (
    (
        r"! \S+ on \S+ has been \S+x slower",
        "takes a minute of training: tests/unit/diagnosis/test_slowness.py",
    ),
    (
        r"! GPU \d+ of \S+, which \S+ has, has told of Xid",
        "takes a sick GPU: tests/unit/diagnosis/test_xids.py",
    ),
    (r"! the tasks dial each other over", "takes hosts with two networks: tests/runs/test_networks.py"),
    (
        r"! \S+ on \S+ (has done nothing|has waited|is stopped|listens on|takes itself for)",
        "takes a minute: tests/runs/test_hangs.py",
    ),
    (r"worker/\d │ (worker/\d step|final loss)", "tests/examples/test_async_ps.py trains this"),
    (r"✗ no stacks: its thread \d+", "takes a program that keeps the GIL: tests/agent/test_live_stacks.py"),
    (r"✗ 2 of 2 hosts could not be used", "tests/docs/test_recipes.py is behind that bastion"),
    (r"traces of \S+, \S+ \(|→ tensorboard --logdir", "tests/runs/test_profile.py takes them"),
    (r"run data-service-|worker/\d +│ read \d+ records", "tests/examples/test_data_service.py reads them"),
)


def matching(table: tuple[tuple[str, object], ...], text: str) -> object | None:
    """What the first entry that matches says."""
    bare = uncommented(text)
    return next((value for key, value in table if re.fullmatch(key, bare, re.DOTALL)), None)


def uncommented(text: str) -> str:
    """The command without the comment behind it."""
    return re.sub(r"\s+#\s.*$", "", text).strip()


def as_typed(text: str, run: str) -> str:
    """The command with names that exist here, one or two, in place of those that a page invents."""
    run, _, other = run.partition(" ")
    verbs = "attach|logs|status|stacks|report|stop|fetch|tensorboard|clean|rerun"
    text = re.sub(rf"(tflaunch (?:{verbs}) )[a-z]\w*-[a-z0-9]{{6}}\b", rf"\g<1>{run}", text)
    invented = r"\b[a-z][a-z0-9_]*-(?=[a-z]*\d)[a-z0-9]{6}\b"
    text = re.sub(invented, lambda found: run if found[0] == run else other or run, text)
    text = re.sub(r"(?<=\s)(RUN|NAME)(?=\s|$)", run, text)
    return re.sub(r"\[HOSTS\]|\bHOSTS\b", "hosts.yaml", text)
