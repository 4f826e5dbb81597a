"""The program of the task that `tflaunch check` runs on every host: it reports on the Python that a trainer would get.

Its text is sent as `python -c`; the interpreter that the hostfile names runs it, however old that is.  It prints its
report as JSON on a line that begins with MARK.  With the argument `tensorflow` it imports TensorFlow first.
"""

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

MARK = "tflaunch-check "
LIMITS = ("nofile", "nproc", "memlock", "core")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# module -> the packages that may have installed it.
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
    """The installed versions of these packages, from their metadata: nothing is imported."""
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
    """Import TensorFlow and report on it; raises whatever the import raises."""
    began = time.time()
    import tensorflow

    report = {"seconds": time.time() - began, "versions": {}, "build": {}, "gpus": None}  # type: Dict[str, Any]
    modules = {"tensorflow": "tensorflow", "keras": "keras", "protobuf": "google.protobuf", "numpy": "numpy"}
    for name, module in modules.items():
        version = getattr(sys.modules.get(module), "__version__", None)
        if version is not None:
            report["versions"][name] = str(version)
    try:
        report["build"] = {key: str(value) for key, value in tensorflow.sysconfig.get_build_info().items()}
    except Exception:
        pass  # an older TensorFlow
    try:
        report["gpus"] = len(tensorflow.config.list_physical_devices("GPU"))
    except Exception:
        pass  # likewise
    return report


def main(words):
    # type: (List[str]) -> None
    """Print the report and exit."""
    report = {
        "python": "%d.%d.%d" % sys.version_info[:3],
        "executable": sys.executable,
        "limits": limits(),
        "proxies": [name for name in PROXIES if os.environ.get(name)],
        "versions": packaged(),
        "error": "",
    }  # type: Dict[str, Any]
    if "tensorflow" in words:
        try:
            report["tensorflow"] = imported()
            report["versions"].update(report["tensorflow"].pop("versions"))
        except BaseException as error:  # a trainer would end by it, whatever it is
            import traceback

            traceback.print_exc()
            report["error"] = "%s: %s" % (type(error).__name__, error)
    # In one write, on a line of its own, whatever else writes into the log.
    os.write(1, ("\n" + MARK + json.dumps(report) + "\n").encode("ascii"))
    os._exit(0)  # without the clean-up of libraries, which may hang or crash


if __name__ == "__main__":
    main(sys.argv[1:])
