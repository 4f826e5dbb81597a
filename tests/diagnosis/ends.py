"""Programs that end as they should not."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.diagnosis import causes
from tests.diagnosis.causes import Cause
from tests.diagnosis.trainers import (
    MWMS_RUN,
    PS_RUN,
    asynchronous,
    mirrored,
    plain,
)

if TYPE_CHECKING:
    from tests.diagnosis.play import Play

MIB = 1 << 20
# Where there is none, the cause does not come about, and has no score.
OLD_PYTHON = next(map(str, Path("~/.pyenv/versions").expanduser().glob("3.8.*/bin/python")), "python3.8")
TRAINS = r"step 40 of worker 1"
ONE = ("--ps=0", "--workers=1", "--no-flags")
TWO = ("--ps=0", "--workers=2", "--no-flags")
# A program without a cluster: two tasks that have TensorFlow, and little to do with each other.
ALONE = plain("", steps=100)

# A module as protoc 3.x generated it.
OLD_PB2 = """
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from google.protobuf import reflection as _reflection
from google.protobuf import symbol_database as _symbol_database

_sym_db = _symbol_database.Default()
DESCRIPTOR = _descriptor.FileDescriptor(
    name="record.proto", package="", syntax="proto3", serialized_options=None,
    serialized_pb=b'\\n\\x0crecord.proto\\"\\x14\\n\\x06Record\\x12\\n\\n\\x02id\\x18\\x01 \\x01(\\x05\\x62\\x06proto3',
)
_RECORD = _descriptor.Descriptor(
    name="Record", full_name="Record", filename=None, file=DESCRIPTOR, containing_type=None,
    fields=[_descriptor.FieldDescriptor(
        name="id", full_name="Record.id", index=0, number=1, type=5, cpp_type=1, label=1,
        has_default_value=False, default_value=0, message_type=None, enum_type=None, containing_type=None,
        is_extension=False, extension_scope=None, serialized_options=None, file=DESCRIPTOR)],
    extensions=[], nested_types=[], enum_types=[], serialized_options=None, is_extendable=False,
    syntax="proto3", extension_ranges=[], oneofs=[], serialized_start=16, serialized_end=36,
)
"""


def on(task: str, code: str, *, program: str = ALONE) -> str:
    """The program, and at its end that code in one task, or in all: "*"."""
    inner = "\n".join(f"    {line}" for line in code.strip("\n").splitlines())
    condition = "True" if task == "*" else f'os.environ["TFLAUNCH_TASK"] == "{task}"'
    return (
        f'{program}\nprint("has TensorFlow", tf.__version__, flush=True)\n'
        f"if {condition}:\n{inner}\nelse:\n    time.sleep(1e6)\n"
    )


def _fails(
    name: str,
    story: str,
    code: str,
    *,
    cause: str,
    fix: str = "",
    task: str = "worker/1",
    command: tuple[str, ...] = TWO,
    proof: str = "exited with|killed by|died",
    place: str = "",
    **more: object,
) -> Cause:
    """One task of two ends so; all: "*"."""
    return Cause(
        name,
        causes.ENDS,
        story,
        on(task, code),
        command,
        proof=proof,
        cause=cause,
        place=place or (r"worker/\d" if task == "*" else task),
        fix=fix,
        symptom="exited with|killed by",
        **more,  # type: ignore[arg-type]
    )


def _small_shm(play: Play) -> None:
    for host in play.hosts:
        host.small_disk("/dev/shm", MIB)


def _small_disk(play: Play) -> None:
    for host in play.hosts:
        host.small_disk("/mnt", 4 * MIB)


def _little_memory(play: Play) -> None:
    play.limit_memory(play.hosts[1], 1100 * MIB)


def _few_processes(play: Play) -> None:
    limit = play.hosts[1].at_most(70)
    limit.__enter__()
    play.at_the_end(lambda: limit.__exit__(None, None, None))


def _gpu(play: Play) -> None:
    play.gpus('gpu name="NVIDIA H100 80GB HBM3" uuid=GPU-{host} mem=81559')


def _broken_driver(play: Play) -> None:
    play.gpus("init_error 18")


def _kill_ps(play: Play) -> None:
    play.kill("ps/0", signal.SIGKILL)


def _kill_worker(play: Play) -> None:
    play.kill("worker/1", signal.SIGKILL)


def _port_taken(play: Play) -> None:
    """Somebody else's server has port 2222 on each host."""
    code = "import socket, time; s = socket.create_server(('', 2222)); time.sleep(1e6)"
    servers = [
        subprocess.Popen(host.inside("python3", "-c", code), stderr=subprocess.DEVNULL) for host in play.hosts
    ]

    def end() -> None:
        for server in servers:
            server.kill()
            server.wait()

    play.at_the_end(end)


def _other_python(play: Play) -> None:
    play.entries = ["host1", {"name": "host2", "python": "/usr/bin/python3"}, "host3"]


PROGRAMS = (
    Cause(
        "unknown-flag",
        causes.ENDS,
        "The user's flag is one that the program does not have",
        asynchronous(),
        (*PS_RUN, "--", "--batch_sizes=3"),
        proof="unrecognized arguments",
        cause=r"--batch_sizes",
        place=r"(ps/0|worker/\d)",
        fix=r"argument of the program|what follows --|--batch_sizes",
        symptom="exited with code 2",
    ),
    Cause(
        "unknown-cluster-flag",
        causes.ENDS,
        "The program reads TF_CONFIG, and its parser knows none of the cluster flags that it is given",
        mirrored(
            top="""
            import argparse
            parser = argparse.ArgumentParser()
            parser.add_argument("--epochs", type=int)
            parser.parse_args()
            """
        ),
        ("--ps=0", "--workers=2", "--flags"),
        proof="unrecognized arguments",
        cause=r"unrecognized arguments|--worker_hosts",
        place=r"worker/\d",
        fix=r"--no-flags|--flag ",
        symptom="exited with code 2",
    ),
    Cause(
        "renamed-flag",
        causes.ENDS,
        "The program calls the index of its task --task_id",
        asynchronous().replace("task_index", "task_id").replace("task_id=index", "task_index=index"),
        (*PS_RUN, "--flags"),
        proof="unrecognized arguments",
        cause=r"--task_index",
        place=r"(ps/0|worker/\d)",
        fix=r"--flag[ =]task_index=",
        symptom="exited with code 2",
    ),
    _fails(
        "missing-module",
        "A package is not installed on the hosts",
        "import sentencepiece",
        task="*",
        cause=r"No module named '?sentencepiece",
        fix=r"pip install|--requirements|install",
    ),
    _fails(
        "module-on-one-host",
        "A package is missing on one host only, whose Python is another",
        "import sentencepiece",
        cause=r"No module named '?(tensorflow|numpy)",
        fix=r"python:|pip install|--requirements|interpreter",
        prepare=_other_python,
        place=r"worker/1|host2",
    ),
    _fails(
        "wrong-interpreter",
        "The hostfile's python has no TensorFlow",
        "pass",
        task="*",
        cause=r"No module named '?(tensorflow|numpy)",
        fix=r"python:|pip install|--requirements|interpreter",
        settings={"python": "/usr/bin/python3"},
    ),
    _fails(
        "no-interpreter",
        "The hostfile's python does not exist",
        "pass",
        task="*",
        cause=r"/opt/none/bin/python",
        fix=r"python:|hostfile|install",
        place=r"host\[?\d|worker/\d",
        settings={"python": "/opt/none/bin/python"},
    ),
    _fails(
        "python-too-old",
        "The hosts' Python is 3.8, and the program uses `match`",
        "match 1:\n    case 1:\n        pass",
        task="*",
        cause=r"SyntaxError|invalid syntax|cannot be read by|does not read",
        fix=r"3\.8|python:",
        place=r"host\[?\d|worker/\d",
        settings={"python": OLD_PYTHON},
    ),
    Cause(
        "syntax-error",
        causes.ENDS,
        "A bracket is not closed",
        ALONE + "print((1, 2)\n",
        TWO,
        cause=r"SyntaxError|never closed",
        place=r"trainer\.py|line \d+",
        symptom="exited with",
    ),
    Cause(
        "module-ignored",
        causes.ENDS,
        ".gitignore keeps a module of the program on this machine",
        on("*", "import settings"),
        TWO,
        files={"settings.py": "rate = 1\n", ".gitignore": "settings.py\n"},
        proof="No module named",
        cause=r"settings",
        place=r"worker/\d|host\[?\d",
        fix=r"gitignore|--ship",
        symptom="exited with",
    ),
    Cause(
        "data-ignored",
        causes.ENDS,
        ".gitignore keeps a file of data on this machine",
        on("*", 'print(open("data/vocabulary.txt").read())'),
        TWO,
        files={"data/vocabulary.txt": "one\ntwo\n", ".gitignore": "data/\n"},
        proof="No such file",
        cause=r"data/vocabulary\.txt",
        place=r"worker/\d|host\[?\d",
        fix=r"gitignore|--ship",
        symptom="exited with",
    ),
    Cause(
        "protobuf-too-new",
        causes.ENDS,
        "A module that an old protoc generated does not load with the installed protobuf",
        on("*", "import record_pb2"),
        TWO,
        files={"record_pb2.py": OLD_PB2},
        proof="Descriptors cannot be created directly|protobuf|TypeError|AttributeError",
        cause=r"protobuf|Descriptors? cannot|protoc\b",
        place=r"worker/\d",
        symptom="exited with",
    ),
    _fails(
        "numpy-2",
        "The program uses a name that NumPy 2 has removed",
        "np.float_(1)",
        task="*",
        cause=r"np\.float_|NumPy 2",
    ),
    _fails(
        "tensorflow-1-names",
        "The program is written for TensorFlow 1",
        "tf.placeholder(tf.float32)",
        task="*",
        cause=r"no attribute 'placeholder'",
        fix=r"compat\.v1|TensorFlow 1",
    ),
    _fails(
        "missing-library",
        "A library of CUDA 11 is not there",
        "import ctypes; ctypes.CDLL('libcudart.so.11.0')",
        task="*",
        cause=r"libcudart\.so\.11\.0",
        fix=r"CUDA|LD_LIBRARY_PATH|install|module load|setup",
    ),
    _fails(
        "relative-import",
        "A program of a package is started as a file",
        "from . import model",
        task="*",
        cause=r"relative import",
        fix=r"-m\b",
    ),
    _fails(
        "asks-stdin",
        "The program asks its user",
        'rate = input("learning rate? ")',
        task="*",
        cause=r"EOF|stdin|input",
        fix=r"input\(|stdin|argument|no terminal|nobody",
    ),
    _fails(
        "debugger-left-in",
        "A breakpoint() was left in the program",
        "breakpoint()\nprint(1)",
        task="*",
        cause=r"BdbQuit|breakpoint|debugger",
        fix=r"breakpoint|debugger|pdb",
    ),
    _fails(
        "shape-mismatch",
        "Two tensors do not fit",
        "tf.matmul(tf.ones([2, 3]), tf.ones([2, 3]))",
        cause=r"Matrix size-incompatible|InvalidArgumentError",
    ),
    Cause(
        "mirrored-with-ps",
        causes.ENDS,
        "MultiWorkerMirroredStrategy in a cluster with a ps",
        mirrored(),
        ("--ps=1", "--workers=2", "--no-flags"),
        proof=r"exited with|training 3 tasks",
        cause=r"MultiWorkerMirrored|ps[^\n]*in (its|the) cluster",
        place=r"ps/0|--ps",
        fix=r"--ps[ =]0",
        symptom="exited with",
    ),
    Cause(
        "sharded-checkpoint",
        causes.ENDS,
        "The ps writes its part of the checkpoint on its own host, where the chief does not find it (_temp)",
        asynchronous(checkpoints='"checkpoints"'),
        PS_RUN,
        proof="_temp",
        cause=r"_temp",
        place=r"worker/0|ps/0",
        fix=r"shar(e|ed)|sharded|same (directory|file system)|NFS",
        symptom="exited with",
    ),
    Cause(
        "nothing-to-do",
        causes.ENDS,
        "The program finds no data, trains nothing and ends with 0",
        on("*", 'import glob\nfor path in glob.glob("/data/none/*"):\n    print(path)\nsys.exit(0)'),
        TWO,
        proof="finished after",
        cause=r"no (training )?step|nothing (was )?(done|trained|written)|(never|not) opened (its|a|their) ports?|"
        r"without (having )?(opened|trained|start)|ended before|wrote nothing|no work",
        place=r"worker/\d|all (2 )?(tasks|workers)|both",
        symptom=r"after \d s",
    ),
)

MACHINES = (
    _fails(
        "illegal-instruction",
        "A library was built for a processor that the host has not (SIGILL)",
        """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b"\\x0f\\x0b")
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
""",
        cause=r"SIGILL|illegal instruction",
        fix=r"AVX|instruction set|processor|CPU",
    ),
    _fails(
        "segmentation-fault",
        "The program reads address 0",
        "import ctypes; ctypes.string_at(0)",
        cause=r"SIGSEGV|segmentation",
    ),
    _fails(
        "shm-full",
        "The program writes into /dev/shm, which is full (SIGBUS)",
        """
batch = np.memmap("/dev/shm/batch", np.uint8, "w+", shape=(16 << 20,))
batch[:] = 1
""",
        cause=r"SIGBUS|bus error",
        fix=r"/dev/shm",
        prepare=_small_shm,
    ),
    _fails(
        "killed-for-memory",
        "The kernel kills a task whose cgroup has no memory left",
        """
held = []
while True:
    held.append(np.ones(50 << 20, np.uint8))
    time.sleep(0.02)
""",
        cause=r"(?<!whether )the kernel[^\n]*killed|oom_kill|cgroup|memory limit|out of memory|limit of \d",
        fix=r"batch|memory",
        place=r"worker/1|host2",
        prepare=_little_memory,
    ),
    _fails(
        "memory-limit",
        "ulimit -v leaves too little for an array",
        "print(np.ones(8 << 30, np.uint8).sum())",
        cause=r"Unable to allocate|MemoryError",
        fix=r"ulimit|memory|batch|limit",
        settings={"setup": "ulimit -v 8000000"},
    ),
    _fails(
        "too-many-open-files",
        "A task opens more files than it may",
        "files = [open('/proc/self/stat') for _ in range(2000)]",
        cause=r"Too many open files",
        fix=r"ulimit -n|LimitNOFILE|limit",
        settings={"setup": "ulimit -n 256"},
    ),
    _fails(
        "too-many-threads",
        "The host has no room for more threads",
        "for _ in range(2000):\n    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()",
        cause=r"can't start new thread|Resource temporarily|thread",
        fix=r"ulimit -u|pids\.max|TasksMax|limit",
        prepare=_few_processes,
        place=r"worker/1|host2",
    ),
    _fails(
        "disk-full",
        "The disk of the checkpoints is full",
        "for step in range(100):\n    np.save(f'/mnt/checkpoint-{step}', np.ones(1 << 17))",
        cause=r"No space left|disk",
        fix=r"space|full|df |disk",
        prepare=_small_disk,
    ),
    _fails(
        "permission",
        "The program may not write where it wants to",
        "os.seteuid(20001)\nopen('/etc/trainer.log', 'w')",
        task="*",
        cause=r"Permission denied",
        fix=r"may not|owner|chmod|chown|another directory|user",
    ),
    _fails(
        "file-on-one-host",
        "A file of the data is missing on one host",
        "open('/data/train/part-00001')",
        cause=r"/data/train/part-00001",
        fix=r"host2|worker/1",
    ),
    _fails(
        "certificate",
        "The server of the data has a certificate that nobody has signed",
        """
import ssl, urllib.request
subprocess.run("openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost",
               shell=True, check=True, stderr=subprocess.DEVNULL)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("cert.pem", "key.pem")
server = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
threading.Thread(target=lambda: server.accept(), daemon=True).start()
urllib.request.urlopen("https://localhost:%d/data" % server.getsockname()[1])
""",
        cause=r"CERTIFICATE_VERIFY_FAILED|certificate",
        fix=r"SSL_CERT_FILE|REQUESTS_CA_BUNDLE|certificate",
    ),
    Cause(
        "nan-losses",
        causes.ENDS,
        "The loss is NaN, and training goes on for ever",
        mirrored(read="if step > 40:\n    return np.full([32, 10], np.nan, np.float32)"),
        MWMS_RUN,
        proof="loss nan",
        cause=r"\bNaN\b",
        place=r"worker/\d|step \d+",
        fix=r"--stop-on-nan|learning.rate|clip|NaN",
        symptom="loss",
    ),
    Cause(
        "gpu-unseen",
        causes.ENDS,
        "Each worker was given a GPU, and TensorFlow sees none",
        mirrored(),
        ("--ps=0", "--workers=2", "--no-flags", "--yes"),
        prepare=_gpu,
        proof="step 20 of worker 0",
        cause=r"(sees?|finds?|uses?) no(t|ne)?\b[^\n]*GPU|GPUs?[^\n]*not (seen|used)|without (a|its) GPU|no GPU",
        place=r"worker/\d|host\[?\d|all",
        fix=r"tensorflow\[and-cuda\]|CUDA|driver|--require-gpu|cuInit|LD_LIBRARY_PATH",
        symptom="GPU",
    ),
    Cause(
        "driver-mismatch",
        causes.ENDS,
        "The driver and its library have different versions, so that workers get no GPU",
        mirrored(steps=100),
        TWO,
        prepare=_broken_driver,
        proof="training 2 tasks",
        cause=r"mismatch|driver",
        place=r"host\[?\d",
        fix=r"reboot|reload|driver|nvidia-smi",
        symptom="NVML|GPU",
        patience_s=60,
    ),
    Cause(
        "port-taken",
        causes.ENDS,
        "The program has a port of its own, which another server has on that host",
        asynchronous(
            addresses="""
            workers = flags.worker_hosts.split(",")
            cluster = tf.train.ClusterSpec({"ps": ["host3:2222"], "worker": workers})
            """
        ),
        PS_RUN,
        prepare=_port_taken,
        proof="No address added|Could not start gRPC|address already in use",
        cause=r"2222|in use|No address added|Could not start gRPC",
        place=r"ps/0",
        fix=r"TF_CONFIG|--ps_hosts|in use|ss -|2222",
        symptom="exited with",
    ),
    Cause(
        "ps-killed",
        causes.ENDS,
        "Somebody kills the ps with -9",
        asynchronous(),
        PS_RUN,
        proof=TRAINS,
        after=TRAINS,
        fault=_kill_ps,
        cause=r"SIGKILL|killed",
        place=r"ps/0",
        fix=r"oom|memory|kill|dmesg|--restarts",
        symptom="exited with",
        misleading=r"^✗ worker/\d[^\n]* exited with",
    ),
    Cause(
        "worker-killed",
        causes.ENDS,
        "Somebody kills a worker with -9, and MultiWorkerMirroredStrategy fails everywhere",
        mirrored(),
        MWMS_RUN,
        proof=TRAINS,
        after=TRAINS,
        fault=_kill_worker,
        cause=r"SIGKILL|killed",
        place=r"worker/1",
        fix=r"oom|memory|kill|dmesg|--restarts",
        symptom="exited with",
        misleading=r"^✗ worker/[02][^\n]* exited with",
    ),
    Cause(
        "ps-raises",
        causes.ENDS,
        "The ps raises an error after a while; the workers then fail, too",
        asynchronous(ps="time.sleep(20)\nraise RuntimeError('the ps has lost its disk')"),
        PS_RUN,
        proof="has lost its disk",
        cause=r"has lost its disk",
        place=r"ps/0",
        symptom="exited with",
    ),
    Cause(
        "worker-raises-mirrored",
        causes.ENDS,
        "One worker raises an error, and the others fail with errors of the network",
        mirrored(read="if index == 2 and step == 60:\n    raise ValueError('bad record 4711')"),
        MWMS_RUN,
        proof="bad record 4711",
        cause=r"bad record 4711",
        place=r"worker/2",
        symptom="exited with",
        misleading=r"^✗ worker/[01][^\n]* exited with",
    ),
    Cause(
        "collective-skipped",
        causes.ENDS,
        "One worker takes part in one collective less than the others",
        mirrored(
            step="if step == 40 and index != 2:\n    print('evaluates', float(evaluate(batch)), flush=True)"
        ),
        MWMS_RUN,
        proof="Shape mismatch in the collective",
        cause=r"mismatch in the collective",
        place=r"worker/\d",
        fix=r"same (order|number|collectives)|all workers|each worker|every worker|program bug",
        symptom="exited with",
    ),
)

ENDS = (*PROGRAMS, *MACHINES)
