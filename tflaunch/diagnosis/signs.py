"""Signs: what lines of a task's log say about it, by plain words; the agents count them (agent/tasks/log_signs.py).

Each is known from the source or the logs of TensorFlow 2.21, and from older ones where they write it otherwise.  A line
counts once for each sign, however many of its words it has.
"""

from __future__ import annotations

# sign -> words of which a line has one at least, written exactly so
WORDS = {
    # "CreateSession still waiting for response from worker: /job:ps/replica:0/task:0", every 10 s
    "still_waiting": ("still waiting for response from worker",),
    # session_manager.py, every recovery_wait_secs; a Supervisor's readiness says "not initialized" after other words
    "not_initialized": (
        "Variables not initialized",
        "variables were not initialized",
        "Model not initialized",
        "Waiting for model to be ready",
    ),
    # "Started server with target: grpc://10.0.0.1:2222": the port that the program has given it
    "server_started": ("Started server with target: grpc://",),
    "unavailable": ("UNAVAILABLE", "UnavailableError", "failed to connect to all addresses"),
    "no_gpu": (
        "no CUDA-capable device is detected",
        "Cannot dlopen some GPU libraries",
        "Could not find cuda drivers",
        "ailed call to cuInit",
    ),
    "no_library": ("Could not load dynamic library",),
    "resource_exhausted": (
        "RESOURCE_EXHAUSTED",
        "ResourceExhaustedError",
        "OOM when allocating",
        "CUDA out of memory",
        "CUDA_ERROR_OUT_OF_MEMORY",
    ),
    # failure_handling.py
    "preempted": ("has received termination notice", "on preempted worker", "PreemptionError"),
    # checkpoint_utils.py, and Estimator's evaluator before there is a checkpoint
    "checkpoint_awaited": (
        "Waiting for new checkpoint",
        "Estimator is not trained yet. Will start an evaluation",
    ),
    "data_end": (
        "OUT_OF_RANGE",
        "OutOfRangeError",
        "ran out of data; interrupting training",
        "iterator ran out of data",
    ),
}
NAN, LOSS, GPU_SEEN = "nan", "loss", "gpu_seen"  # these take more than words
SIGNS = (*WORDS, NAN, LOSS, GPU_SEEN)

_METRICS = ("loss", "cost")
_NEAR = 80  # characters before and after a value that are looked at
_BETWEEN = " \t:='\"([{<>|,-+*"
# What may stand between the name of a metric and its value; `tensor(nan)`, `np.float32(nan)`, "Loss is NaN".
_FILLERS = ("is", "was", "became", "tensor", "array", "float32", "float64", "np.", "tf.", "numpy=", "value")


def signs_in(text: str) -> dict[str, list[str]]:
    """The lines of that text that have signs, by sign."""
    lines, lowered = text.split("\n"), text.lower()
    found = {}
    for sign, words in WORDS.items():
        present = [word for word in words if word in text]
        if present:
            found[sign] = [line for line in lines if any(word in line for word in present)]
    if "nan" in lowered:
        found[NAN] = [line for line in lines if is_nan(line)]
    if any(metric in lowered for metric in _METRICS):
        found[LOSS] = [line for line in lines if is_loss(line)]
    if "Created device /" in text:
        found[GPU_SEEN] = [line for line in lines if is_gpu(line)]
    return {sign: of_it for sign, of_it in found.items() if of_it}


def is_gpu(line: str) -> bool:
    """Whether TensorFlow says that it has made a device of a GPU: "Created device /job:...GPU:0 with 22290 MB"."""
    return "GPU:" in line.partition("Created device /")[2]


def is_nan(line: str) -> bool:
    """Whether a metric that is called loss or cost, or ends so, is said to be NaN: "step 7, val_loss: nan"."""
    text = line.lower()
    at = text.find("nan")
    while at >= 0:
        # Of a long line only what is near: it may be one array of NaNs.
        before, after = text[max(0, at - _NEAR) : at], text[at + 3 : at + 3 + _NEAR]
        if not (_in_a_name(before[-1:]) or _in_a_name(after[:1])):
            # "NaN loss during training."
            if after.lstrip(" \t").startswith(_METRICS) and after[:1].isspace():
                word = after.split(None, 1)[0].strip(".,:;!")
                if word in _METRICS:
                    return True
            if _names_a_metric(before):
                return True
        at = text.find("nan", at + 3)
    return False


def is_loss(line: str) -> bool:
    """Whether a metric that is called loss or cost, or ends so, is said to be a number: "step 7, val_loss: 0.31"."""
    return any(_numbers(line.lower(), metric) for metric in _METRICS)


def loss_in(line: str) -> str:
    """The number of the loss itself in that line, "" if it has none: of "loss: 0.3 - val_loss: 0.31" it is "0.3"."""
    found = [number for before, number in _numbers(line.lower(), "loss") if not _in_a_name(before[-1:])]
    return found[-1] if found else ""


def _numbers(text: str, metric: str) -> list[tuple[str, str]]:
    """For each number that follows that metric's name: what stands before the name, and the number."""
    parts = text.split(metric)
    numbers = [_first_number(after[:_NEAR]) if after[:1] in _BETWEEN else "" for after in parts[1:]]
    return [each for each in zip(parts, numbers) if each[1]]  # noqa: B905  Python 3.8


def _first_number(text: str) -> str:
    """The number that comes first, but for what may stand between a metric's name and its value; "" if none does."""
    while True:
        bare = text.lstrip(_BETWEEN)
        if bare[:1].isdigit() or (bare[:1] == "." and bare[1:2].isdigit()):
            after = bare.lstrip("0123456789.e+-")
            number = bare[: len(bare) - len(after)].rstrip(".e+-")
            if "." not in number and after[:1] == "," and after[1:2].isdigit():
                return ""  # "1,234.5" and "0,31": what its comma means, nobody says
            return ("-" if text[: len(text) - len(bare)].endswith("-") else "") + number
        filler = next((each for each in _FILLERS if bare.startswith(each)), "")
        if not filler:
            return ""
        text = bare[len(filler) :]


def _in_a_name(character: str) -> bool:
    return character.isalnum() or character == "_"


def _names_a_metric(text: str) -> bool:
    """Whether that text ends with a metric's name, but for what may stand before its value."""
    while True:
        bare = text.rstrip(_BETWEEN)
        filler = next((each for each in _FILLERS if bare.endswith(each)), "")
        if not filler or (_in_a_name(bare[: -len(filler)][-1:]) and filler[-1].isalnum()):
            return len(bare) < len(text) and bare.endswith(_METRICS)
        text = bare[: -len(filler)] + " "
