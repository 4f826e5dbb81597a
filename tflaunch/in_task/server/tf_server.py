"""The program of every task of `tflaunch up`: a TensorFlow server and nothing else, run by the Python of its host.

TF_CONFIG says which task it is.  It ends by a signal only.  It does not handle SIGTERM and SIGINT, so its end shows as
"killed by a signal", never as success.
"""

import json
import os
import signal
import sys


def main() -> str:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would wait until join() returns
    config = json.loads(os.environ["TF_CONFIG"])
    job, index = config["task"]["type"], config["task"]["index"]
    # A server has no use for Keras: by this TensorFlow imports none, which is a quarter of what its import takes.
    os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    try:
        import tensorflow as tf
    except ModuleNotFoundError as missing:
        if missing.name != "tensorflow":
            raise
        return "{}: No module named tensorflow".format(sys.executable)
    server = tf.distribute.Server(config["cluster"], job_name=job, task_index=index)
    mine = config["cluster"][job][index]
    print(f"TensorFlow {tf.__version__} serves as {job}/{index} at grpc://{mine}", flush=True)
    server.join()
    return "the server has ended by itself"


if __name__ == "__main__":
    sys.exit(main())
