"""Which Keras a task would get: with Keras 3, `fit` fails under TensorFlow's strategies over several machines."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

_FOUND = "tflaunch-keras "

# Nothing is imported, so this takes as long as Python takes to start.  Before TensorFlow 2.16 its Keras is not Keras 3.
_ASK = """\
import os
from importlib.metadata import PackageNotFoundError, version
def first(*names):
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
    return ""
def parts(text):
    return [int(part) for part in text.split(".")[:2]]
keras = first("keras", "keras-nightly")
tensorflow = first("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "tensorflow-rocm") or "2.16"
legacy = os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true")
if keras and not legacy and parts(keras) >= [3, 0] and parts(tensorflow) >= [2, 16]:
    print("tflaunch-keras " + keras)
"""


def ask() -> str:
    """A line of shell: the interpreter `$1` says if its TensorFlow has Keras 3."""
    return "\"$1\" -c '%s' </dev/null 2>/dev/null\n" % _ASK


def version_in(said: bytes) -> str:
    """The version of Keras 3 from what the shell has said; "" where it is another Keras, or none."""
    lines = said.decode("ascii", "replace").split("\n")  # type: List[str]
    found = [line[len(_FOUND) :].strip() for line in lines if line.startswith(_FOUND)]
    return found[-1][:40] if found else ""
