"""A TensorFlow server and nothing else: what `tflaunch up` runs as every task, with the Python of its host.

Who it is stands in TF_CONFIG.  It ends by a signal only: SIGTERM and SIGINT do at once what they do to a program
that does not handle them, so that whoever looks at how it ended never takes that for success.
"""

import json
import os
import signal
import sys


def main() -> str:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's own handler would wait for join() to return
    config = json.loads(os.environ["TF_CONFIG"])
    job, index = config["task"]["type"], config["task"]["index"]
    try:
        import tensorflow as tf
    except ModuleNotFoundError as missing:
        if missing.name != "tensorflow":
            raise
        return "{}: No module named tensorflow".format(sys.executable)  # noqa: UP032  (any Python)
    server = tf.distribute.Server(config["cluster"], job_name=job, task_index=index)
    mine = config["cluster"][job][index]
    print(f"TensorFlow {tf.__version__} serves as {job}/{index} at grpc://{mine}", flush=True)
    server.join()
    return "the server has ended by itself"


if __name__ == "__main__":
    sys.exit(main())
