"""Programs that hang."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from tests.diagnosis import causes
from tests.diagnosis.causes import Cause
from tests.diagnosis.trainers import (
    MWMS_RUN,
    PS_RUN,
    PSS_RUN,
    asynchronous,
    coordinated,
    mirrored,
    pipeline,
    plain,
    synchronous,
)
from tests.support.bed.machines import NOWHERE

if TYPE_CHECKING:
    from tests.diagnosis.play import Play

WAITS_FOR = r"waits?|waiting|waited"


def line_of(function: str) -> str:
    """Where a task is: a line of the program, or the function that it is in."""
    return rf"trainer\.py:\d+|trainer\.py\"?,? line \d+|\bin {function}\b|\b{function}\(\)"


def blames(task: str) -> str:
    """A sentence about that task that is not only about it as one of those that wait."""
    job, _, index = task.partition("/")
    others = rf"{job}/(?!{index}\b)\d+"
    return (
        rf"(?<!, )\b{task}\b(?!, {job})( \([^)]*\))?( on \S+)?:? [^\n]*\b(is|has|hangs|sits|stands|stopped|does|did|"
        rf"lacks|called|ended|waits|listens|looks|dials|calls|finished)\b|"
        rf"({WAITS_FOR}|wait only) [^\n]*for (it|{task}\b)|{others}[^\n]* ({WAITS_FOR}) [^\n]*for[^\n]*\b{task}\b"
    )


def accuses(task: str) -> str:
    """Says of a task that waits itself that it holds up the others."""
    others = r"(others?|worker/\d|chief/0|ps/0)( and worker/\d)? waits? for it"
    return rf"({WAITS_FOR})( \d+ (s|min))? for {task}\b|^\s*! {task} [^\n]*{others}"


def _stuck(
    name: str, story: str, code: str, *, cause: str, proof: str, fix: str = "", where: str = "read"
) -> Cause:
    """The input of worker/1 of three is stuck at step 40, in MultiWorkerMirroredStrategy."""
    return Cause(
        name,
        causes.HANGS,
        story,
        mirrored(read=f"if index == 1 and step == 40:\n    print('at step 40', flush=True)\n{_in(code)}"),
        MWMS_RUN,
        proof=proof,
        cause=f"{cause}|{line_of(where)}" if cause else line_of(where),
        place=blames("worker/1"),
        fix=fix,
        symptom=r"worker/\d|all.reduce|collective|no progress|hang",
        misleading=rf"{accuses('worker/0')}|{accuses('worker/2')}",
    )


def _in(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.strip("\n").splitlines())


def _nobody_answers(play: Play) -> None:
    """The name server of all hosts is one that does not answer; their own names they know."""
    for host in play.hosts:
        (host.directory / "resolv.conf").write_text(f"nameserver {NOWHERE}\n")


def _stop(play: Play) -> None:
    play.kill("worker/1", signal.SIGSTOP)


def _stop_ps(play: Play) -> None:
    play.kill("ps/0", signal.SIGSTOP)


def _freeze_ps(play: Play) -> None:
    play.freeze("ps/0")


INPUTS = (
    _stuck(
        "input-sleeps",
        "The input of one worker sleeps for ever",
        "import time; time.sleep(1e6)",
        cause="",
        proof="at step 40",
    ),
    _stuck(
        "input-file-lock",
        "The input of one worker waits for a file lock that another process holds",
        """
import fcntl
holds = "import fcntl, time; f = open('cache.lock', 'w'); fcntl.flock(f, 2); time.sleep(1e6)"
subprocess.Popen([sys.executable, "-c", holds])
time.sleep(2)
with open("cache.lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
""",
        cause=r"file lock|flock|lock of a file|cache\.lock",
        proof="at step 40",
    ),
    _stuck(
        "input-socket",
        "One worker asks a data server that takes the connection and never answers",
        """
silent = socket.create_server(("127.0.0.1", 0))
with socket.create_connection(silent.getsockname()) as asks:
    asks.sendall(b"GET /batch/40\\r\\n")
    asks.recv(1000)
""",
        cause=r"socket|connection to \S+:\d+|recv",
        proof="at step 40",
    ),
    _stuck(
        "input-fifo",
        "One worker opens a named pipe that nobody writes to",
        """
os.mkfifo("batches.fifo")
open("batches.fifo").read()
""",
        cause=r"fifo|named pipe|wait_for_partner",
        proof="at step 40",
    ),
    _stuck(
        "input-queue",
        "The thread that fills the queue of one worker has died",
        """
import queue
batches = queue.Queue()
def fill_queue():
    raise ValueError("bad record 4711")
threading.Thread(target=fill_queue).start()
batches.get()
""",
        cause=r"queue\.py|queue",
        proof="bad record 4711",
    ),
    _stuck(
        "input-deadlock",
        "Two threads of one worker take two locks in turn",
        """
one, two = threading.Lock(), threading.Lock()
def take(first, second):
    with first:
        time.sleep(1)
        with second:
            pass
threads = [threading.Thread(target=take, args=pair) for pair in ((one, two), (two, one))]
for each in threads:
    each.start()
for each in threads:
    each.join()
""",
        cause=r"deadlock|lock",
        proof="at step 40",
    ),
    _stuck(
        "input-holds-gil",
        "One worker matches a regular expression for ever, in C, with the GIL",
        """
import re
re.match(r"(a+)+$", "a" * 64 + "b")
""",
        cause=r"GIL|re/__init__|regular expression",
        proof="at step 40",
    ),
    _stuck(
        "input-spins",
        "One worker computes for ever in native code, without the GIL",
        """
import hashlib
hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 2**31 - 1)
""",
        cause="hashlib|pbkdf2",
        proof="at step 40",
    ),
    _stuck(
        "input-subprocess",
        "One worker waits for a child that never ends",
        "subprocess.run(['sleep', '1000000'])",
        cause=r"child|subprocess|sleep 1000000",
        proof="at step 40",
    ),
    _stuck(
        "input-pool",
        "A process of the pool of one worker has been killed, and its result never comes",
        """
import multiprocessing
pool = multiprocessing.get_context("fork").Pool(1)
pool.apply(os._exit, (1,))
""",
        cause=r"pool\.py|multiprocessing|child",
        proof="at step 40",
    ),
    _stuck(
        "input-retries",
        "One worker tries a server that refuses it again and again, without a word",
        """
while True:
    try:
        socket.create_connection(("127.0.0.1", 9)).close()
        break
    except OSError:
        time.sleep(1)
""",
        cause=r"refuse|127\.0\.0\.1:9\b",
        proof="at step 40",
    ),
    _stuck(
        "input-retries-aloud",
        "One worker tries a server that refuses it for ever, and says so each time",
        """
while True:
    try:
        socket.create_connection(("127.0.0.1", 9)).close()
        break
    except OSError as error:
        print("the data server:", error, "- trying again", flush=True)
        time.sleep(2)
""",
        cause=r"refuse|127\.0\.0\.1:9\b|trying again|retr(y|ies)",
        proof="trying again",
    ),
    _stuck(
        "fork-after-tensorflow",
        "One worker forks after TensorFlow has begun, and its child computes with TensorFlow",
        """
child = os.fork()
if child == 0:
    print("forked", float(tf.reduce_sum(tf.matmul(tf.ones([900, 900]), tf.ones([900, 900])))), flush=True)
    os._exit(0)
os.waitpid(child, 0)
""",
        cause=r"fork|child|waitpid",
        proof="at step 40",
    ),
    Cause(
        "pipeline-generator",
        causes.HANGS,
        "The generator behind tf.data is stuck on one worker",
        pipeline(
            read="if index == 2 and step == 40:\n    print('at step 40', flush=True)\n    time.sleep(1e6)"
        ),
        MWMS_RUN,
        proof="at step 40",
        cause=line_of("numbers"),
        place=blames("worker/2"),
        symptom=r"worker/\d|all.reduce|collective|hang",
        misleading=rf"{accuses('worker/0')}|{accuses('worker/1')}",
    ),
    Cause(
        "input-dns",
        causes.HANGS,
        "An asynchronous worker asks a name server that does not answer, while the other trains",
        asynchronous(
            open="""
            while index == 1:
                print("looks for the data", flush=True)
                try:
                    socket.getaddrinfo("data.example.org", 80)
                    break
                except OSError:
                    pass
            """
        ).replace('print("looks for the data", flush=True)', "looks = 1"),
        PS_RUN,
        proof=r"step 200 of worker 0",
        prepare=_nobody_answers,
        cause=r"resolv|DNS|name server|port 53\b|:53\b|getaddrinfo",
        place=blames("worker/1"),
        symptom=r"worker/1",
        misleading=r"worker/0[^\n]*(hang|stuck|waits)",
    ),
    Cause(
        "input-open-async",
        causes.HANGS,
        "An asynchronous worker is stuck in opening its input, while the other trains",
        asynchronous(
            open="""
            if index == 1:
                opened = threading.Event()
                opened.wait()
            """
        ),
        PS_RUN,
        proof=r"step 100 of worker 0",
        cause=line_of("open_input"),
        place=blames("worker/1"),
        symptom=r"worker/1",
        misleading=r"worker/0[^\n]*(hang|stuck|waits)",
    ),
    Cause(
        "input-open-before-server",
        causes.HANGS,
        "An asynchronous worker reads a named pipe before it starts its server; nobody waits for it",
        asynchronous(
            before="""
            if flags.job_name == "worker" and index == 1:
                os.mkfifo("vocabulary")
                open("vocabulary").read()
            """
        ),
        PS_RUN,
        proof=r"step 100 of worker 0",
        cause=rf"fifo|wait_for_partner|named pipe|{line_of('<module>')}",
        place=blames("worker/1"),
        symptom=r"worker/1|not opened its port",
        misleading=r"worker/0[^\n]*(hang|stuck|waits)",
    ),
)

CLUSTER = (
    Cause(
        "uneven-data",
        causes.HANGS,
        "One worker of MultiWorkerMirroredStrategy has fewer batches, and ends well; the others wait for it",
        mirrored(steps="40 if index == 1 else 10**9"),
        MWMS_RUN,
        proof="done after 40 steps",
        cause=r"uneven|fewer|different number|as many|same number|repeat\(|steps_per_epoch|ended|finished",
        place=r"worker/1",
        fix=r"repeat|steps_per_epoch|same number|as many|drop_remainder|uneven|take\(|fewer",
        symptom=r"worker/[012]",
    ),
    Cause(
        "uneven-data-waits",
        causes.HANGS,
        "One worker of MultiWorkerMirroredStrategy has fewer batches, and waits for the others at a barrier of its own",
        mirrored(
            steps="40 if index == 1 else 10**9",
            end="""
            open("done-1", "w").close()
            while not all(os.path.exists(f"done-{each}") for each in range(3)):
                time.sleep(0.5)
            """,
        ),
        MWMS_RUN,
        proof="done after 40 steps",
        cause=line_of("main"),
        place=blames("worker/1"),
        symptom=r"worker/\d|all.reduce|collective",
        misleading=rf"{accuses('worker/0')}|{accuses('worker/2')}",
    ),
    Cause(
        "chief-evaluates-alone",
        causes.HANGS,
        "After the last step the chief evaluates, which needs all workers; the others have ended",
        mirrored(steps=60, end="if index == 0:\n    print('evaluates', float(evaluate(batch)), flush=True)"),
        MWMS_RUN,
        proof="done after 60 steps",
        cause=rf"collective|all.reduce|{line_of('main')}|evaluate|ended|finished",
        place=blames("worker/0"),
        symptom=r"worker/\d|all.reduce|collective|hang",
    ),
    Cause(
        "collective-left-out",
        causes.HANGS,
        "One worker leaves out a last collective, and waits for something else",
        mirrored(
            steps=60,
            end="""
            if index == 2:
                threading.Event().wait()
            print("evaluates", float(evaluate(batch)), flush=True)
            """,
        ),
        MWMS_RUN,
        proof="done after 60 steps",
        cause=line_of("main"),
        place=blames("worker/2"),
        symptom=r"worker/\d|all.reduce|collective|hang",
        misleading=rf"{accuses('worker/0')}|{accuses('worker/1')}",
    ),
    Cause(
        "mwms-late",
        causes.HANGS,
        "One worker of MultiWorkerMirroredStrategy copies data for an hour before it starts",
        mirrored(before="if index == 2:\n    subprocess.run(['sleep', '3600'])"),
        MWMS_RUN,
        proof="training 3 tasks",
        absent="step 0 of worker",
        cause=rf"not opened its port|not (yet )?(joined|started|listening)|{line_of('<module>')}|child",
        place=blames("worker/2"),
        symptom=r"worker/2",
        misleading=rf"{accuses('worker/1')}",
    ),
    Cause(
        "mwms-leader-late",
        causes.HANGS,
        "The worker that leads MultiWorkerMirroredStrategy never comes to its start",
        mirrored(before="if index == 0:\n    threading.Event().wait()"),
        MWMS_RUN,
        proof="training 3 tasks",
        absent="step 0 of worker",
        cause=rf"not opened its port|{line_of('<module>')}",
        place=blames("worker/0"),
        symptom=r"worker/0",
        misleading=rf"{accuses('worker/1')}|{accuses('worker/2')}",
    ),
    Cause(
        "mwms-stale-addresses",
        causes.HANGS,
        "The program overwrites TF_CONFIG with the addresses of an older cluster",
        mirrored(
            top="""
            os.environ["TF_CONFIG"] = json.dumps({
                "cluster": {"worker": ["10.77.200.1:2222", "10.77.200.2:2222", "10.77.200.3:2222"]},
                "task": {"type": "worker", "index": index},
            })
            """
        ),
        MWMS_RUN,
        proof="training 3 tasks",
        absent="step 0 of worker",
        cause=r"2222|10\.77\.200\.\d|outside the cluster|TF_CONFIG",
        place=r"worker/\d",
        fix=r"TF_CONFIG|hard.?coded|address",
        symptom=r"not opened its port",
    ),
    Cause(
        "stale-addresses",
        causes.HANGS,
        "The cluster is written into the program; the ps has moved",
        asynchronous(
            addresses="""
            workers = ["host1:2222", "host2:2222"]
            cluster = tf.train.ClusterSpec({"ps": ["10.77.200.1:2222"], "worker": workers})
            """
        ),
        PS_RUN,
        proof="training 3 tasks",
        absent="step 0 of worker",
        cause=r"2222|10\.77\.200\.1|outside the cluster",
        place=r"ps/0|worker/\d",
        fix=r"TF_CONFIG|--ps_hosts|hard.?coded|address",
        symptom=r"not opened its port|wait",
    ),
    Cause(
        "hard-coded-port",
        causes.HANGS,
        "The ps listens on the port that is written into the program; the workers call that of the plan",
        asynchronous(
            addresses="""
            if is_ps:
                cluster = tf.train.ClusterSpec({"ps": ["host3:2222"], "worker": flags.worker_hosts.split(",")})
            """
        ),
        PS_RUN,
        proof="training 3 tasks",
        absent="step 0 of worker",
        cause=r"2222",
        place=blames("ps/0"),
        fix=r"TF_CONFIG|--ps_hosts|hard.?coded|address",
        symptom=r"ps/0",
    ),
    Cause(
        "barrier-in-directory",
        causes.HANGS,
        "The workers wait for each other's files in a directory that each has for itself",
        mirrored(
            before="""
            def barrier():
                os.makedirs("barrier", exist_ok=True)
                open(f"barrier/{index}", "w").close()
                while len(os.listdir("barrier")) < 3:
                    time.sleep(0.5)
            barrier()
            """
        ),
        MWMS_RUN,
        proof="training 3 tasks",
        absent="step 0 of worker",
        cause=line_of("barrier"),
        place=r"worker/\d|all (3 )?(tasks|workers|trainers)",
        symptom=r"not opened its port|wait",
    ),
    Cause(
        "waits-for-file",
        causes.HANGS,
        "A worker waits for a vocabulary that the chief writes on its own host",
        asynchronous(
            open="""
            if is_chief:
                open("vocabulary.txt", "w").close()
            while not os.path.exists("vocabulary.txt"):
                time.sleep(1)
            """
        ),
        PS_RUN,
        proof="step 100 of worker 0",
        cause=line_of("open_input"),
        place=blames("worker/1"),
        symptom=r"worker/1",
        misleading=r"worker/0[^\n]*(hang|stuck|waits)",
    ),
    Cause(
        "stopped-task",
        causes.HANGS,
        "Somebody has stopped a worker (SIGSTOP)",
        mirrored(),
        MWMS_RUN,
        after="step 40 of worker 1",
        fault=_stop,
        cause=r"stopped|state T|SIGSTOP",
        place=blames("worker/1"),
        fix=r"kill -CONT|SIGCONT",
        symptom=r"worker/1",
        misleading=rf"{accuses('worker/0')}|{accuses('worker/2')}",
    ),
    Cause(
        "stopped-ps",
        causes.HANGS,
        "Somebody has stopped the ps (SIGSTOP)",
        asynchronous(),
        PS_RUN,
        after="step 40 of worker 1",
        fault=_stop_ps,
        cause=r"stopped|state T|SIGSTOP",
        place=blames("ps/0"),
        fix=r"kill -CONT|SIGCONT",
        symptom=r"ps/0|worker/\d",
        misleading=accuses("worker/[01]"),
    ),
    Cause(
        "frozen-ps",
        causes.HANGS,
        "The cgroup of the ps is frozen, as `docker pause` does it",
        asynchronous(),
        PS_RUN,
        after="step 40 of worker 1",
        fault=_freeze_ps,
        cause=r"frozen|freezer|refrigerator|paused",
        place=blames("ps/0"),
        symptom=r"ps/0|worker/\d",
        misleading=accuses("worker/[01]"),
    ),
    Cause(
        "ps-late",
        causes.HANGS,
        "The ps never comes to start its server",
        asynchronous(before="if is_ps:\n    threading.Event().wait()"),
        PS_RUN,
        proof="training 3 tasks",
        absent="step 0 of worker",
        cause=rf"not opened its port|{line_of('<module>')}",
        place=blames("ps/0"),
        symptom=r"ps/0",
        misleading=accuses("worker/[01]"),
    ),
)

SESSIONS = (
    Cause(
        "sync-too-many-replicas",
        causes.HANGS,
        "SyncReplicasOptimizer aggregates the gradients of more replicas than there are",
        synchronous(aggregate="workers + 1", total="workers + 1", tokens=0),
        PS_RUN,
        proof=r"training 3 tasks",
        absent=r"global step \d\d",
        cause=r"SyncReplicas|replicas_to_aggregate|token|gradients? of (more|\d)",
        place=r"worker/\d|all (the )?(workers|trainers|tasks)|\bworkers\b",
        symptom=r"worker/\d|hang|wait",
    ),
    Cause(
        "sync-shard-ends",
        causes.HANGS,
        "With SyncReplicasOptimizer, one worker has fewer batches and ends well",
        synchronous(steps="40 if index == 1 else 10**9"),
        PS_RUN,
        proof="done after 40 steps",
        cause=r"ended|finished|fewer|SyncReplicas|gradient",
        place=r"worker/1",
        fix=r"repeat|backup|replicas_to_aggregate|same number|as many|fewer|SyncReplicas",
        symptom=r"worker/[01][^\n]*(wait|hang)",
    ),
    Cause(
        "sync-chief-ends",
        causes.HANGS,
        "With SyncReplicasOptimizer, the chief ends well, and with it the tokens",
        synchronous(steps="40 if index == 0 else 10**9"),
        PS_RUN,
        proof="done after 40 steps",
        cause=r"ended|finished|chief|token|SyncReplicas",
        place=r"worker/0|chief",
        fix=r"--done|StopAtStep|same number|as many|chief",
        symptom=r"worker/[01][^\n]*(wait|hang)",
    ),
    Cause(
        "chief-never-initialises",
        causes.HANGS,
        "The chief is stuck in its input; the other worker waits for the variables",
        asynchronous(open="if is_chief:\n    threading.Event().wait()"),
        PS_RUN,
        proof=r"training 3 tasks",
        absent="step 0 of worker",
        cause=rf"initiali[sz]e|{line_of('open_input')}",
        place=r"worker/0|chief",
        symptom=r"not initialized|worker/[01]",
        misleading=accuses("worker/1"),
    ),
    Cause(
        "nobody-is-chief",
        causes.HANGS,
        "The program takes the worker with index 2 of two for its chief",
        asynchronous(before='is_chief = flags.job_name == "worker" and index == 2'),
        PS_RUN,
        proof=r"training 3 tasks",
        absent="step 0 of worker",
        cause=r"initiali[sz]|\bchief\b",
        place=r"worker/\d|all (the )?workers|no (task|worker)|nobody",
        symptom=r"not initialized|worker/[01]",
    ),
    Cause(
        "chief-ended-before-worker",
        causes.HANGS,
        "The chief has finished before the other worker starts, which then waits for it for ever",
        asynchronous(
            filters="None",
            steps="20 if index == 0 else 10**9",
            session='config = v1.ConfigProto(device_filters=["/job:ps", "/job:worker/task:0"]) if is_chief else config',
            before="if flags.job_name == 'worker' and index == 1:\n    time.sleep(20)",
        ),
        PS_RUN,
        proof="done after 20 steps",
        cause=r"ended|finished|gone",
        place=r"worker/0|chief",
        fix=r"device_filters|--done|start|wait",
        symptom=r"worker/1[^\n]*wait",
    ),
    Cause(
        "chief-ends-workers-stay",
        causes.HANGS,
        "The coordinator of ParameterServerStrategy has done its work, but the servers of its workers never end",
        coordinated(steps=60),
        ("--chief", "--ps=1", "--workers=2", "--no-flags"),
        hosts=4,
        proof="done after 60 steps",
        cause=r"chief[^\n]*(ended|finished|done)",
        place=r"chief",
        fix=r"--done[ =]chief",
        symptom=r"worker/\d[^\n]*(wait|never|hang)",
    ),
    Cause(
        "pss-worker-stuck",
        causes.HANGS,
        "A worker of ParameterServerStrategy is stuck in a step: its data is a named pipe that nobody writes to",
        coordinated(
            serves="",
            top="""
            if role == "worker" and index == 1:
                os.mkfifo("data.txt")
            else:
                open("data.txt", "w").write("1\\n")
            """,
            read='return tf.data.TextLineDataset("data.txt").repeat().map(lambda line: tf.ones([32, 10]))',
        ),
        PSS_RUN,
        hosts=4,
        proof="training 4 tasks",
        absent="step 100,",
        cause=r"fifo|wait_for_partner|named pipe|stuck in a (step|function)|data\.txt",
        place=blames("worker/1"),
        symptom=r"worker/1|chief",
        misleading=accuses("worker/0"),
    ),
    Cause(
        "pss-coordinator-stuck",
        causes.HANGS,
        "The coordinator of ParameterServerStrategy waits for a lock that it holds; its workers idle",
        coordinated(
            step="""
            if step == 40:
                print("takes the lock", flush=True)
                lock = threading.Lock()
                lock.acquire()
                lock.acquire()
            """
        ),
        PSS_RUN,
        hosts=4,
        proof="takes the lock",
        cause=line_of("main"),
        place=blames("chief/0"),
        symptom=r"chief",
        misleading=accuses(r"worker/\d"),
    ),
    Cause(
        "evaluator-unshared-directory",
        causes.HANGS,
        "The evaluator waits for checkpoints in a directory that it does not share with the chief",
        plain("""
if role == "evaluator":
    print("waits for checkpoints", flush=True)
    for path in tf.train.checkpoints_iterator("checkpoints"):
        print("evaluates", path, flush=True)
else:
    w = tf.Variable(tf.zeros([10]))
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(w=w), "checkpoints", max_to_keep=3)
    for step in range(steps):
        w.assign_add(tf.ones([10]))
        if step % 100 == 0:
            print(f"step {step}, saved {manager.save()}", flush=True)
        time.sleep(0.05)
"""),
        ("--ps=0", "--workers=1", "--evaluator", "--no-flags"),
        proof=r"(?s)waits for checkpoints.*step 400",
        cause=r"checkpoint|share|directory|checkpoint_utils|time_to_next_check",
        place=blames("evaluator/0"),
        fix=r"share|same directory|same host|--job-hosts|checkpoint",
        symptom=r"evaluator",
    ),
)

HANGS = (*INPUTS, *CLUSTER, *SESSIONS)
