"""What `tflaunch check` runs on every host in the place of a trainer: a task that tells what it finds.

Its text is the task's program (`python -c`); the interpreter that the hostfile names runs it, be it as old as it may.
With the argument `tensorflow` it imports that; the last line that begins with MARK holds what it tells, as JSON.
"""

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

MARK = "tflaunch-trial "
LIMITS = ("nofile", "nproc", "memlock", "core")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# The names under which a version may be known to the package manager.
PACKAGES = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "tensorflow-rocm"),
    "keras": ("keras", "tf-keras", "keras-nightly"),
    "protobuf": ("protobuf",),
    "numpy": ("numpy",),
}


def limits():
    # type: () -> Dict[str, Optional[int]]
    """The soft resource limits; None: without limit."""
    import resource

    found = {}
    for name in LIMITS:
        soft = resource.getrlimit(getattr(resource, "RLIMIT_" + name.upper()))[0]
        found[name] = None if soft == resource.RLIM_INFINITY else soft
    return found


def packaged():
    # type: () -> Dict[str, str]
    """The versions that are installed, without importing anything of it."""
    found = {}  # type: Dict[str, str]
    try:
        from importlib.metadata import version
    except ImportError:  # before Python 3.8
        return found
    for name, packages in PACKAGES.items():
        for package in packages:
            try:
                found.setdefault(name, version(package))
            except Exception:
                pass  # it is not there, or its metadata is damaged
    return found


def imported():
    # type: () -> Dict[str, Any]
    """What TensorFlow is, as it tells once it is imported; raises whatever the import raises."""
    began = time.time()
    import tensorflow

    told = {"seconds": time.time() - began, "versions": {}, "build": {}, "gpus": None}  # type: Dict[str, Any]
    modules = {"tensorflow": "tensorflow", "keras": "keras", "protobuf": "google.protobuf", "numpy": "numpy"}
    for name, module in modules.items():
        version = getattr(sys.modules.get(module), "__version__", None)
        if version is not None:
            told["versions"][name] = str(version)
    try:
        told["build"] = {key: str(value) for key, value in tensorflow.sysconfig.get_build_info().items()}
    except Exception:
        pass  # an older one
    try:
        told["gpus"] = len(tensorflow.config.list_physical_devices("GPU"))
    except Exception:
        pass  # likewise
    return told


def main(words):
    # type: (List[str]) -> None
    """Tell it all."""
    told = {
        "python": "%d.%d.%d" % sys.version_info[:3],
        "executable": sys.executable,
        "limits": limits(),
        "proxies": [name for name in PROXIES if os.environ.get(name)],
        "versions": packaged(),
        "error": "",
    }  # type: Dict[str, Any]
    if "tensorflow" in words:
        try:
            told["tensorflow"] = imported()
            told["versions"].update(told["tensorflow"].pop("versions"))
        except BaseException as error:  # whatever it is, a task would end by it
            import traceback

            traceback.print_exc()
            told["error"] = "%s: %s" % (type(error).__name__, error)
    # In one piece, on a line of its own, whatever else writes into the log.
    os.write(1, ("\n" + MARK + json.dumps(told) + "\n").encode("ascii"))
    os._exit(0)  # no farewell of a library can hang, or crash, any more


if __name__ == "__main__":
    main(sys.argv[1:])
