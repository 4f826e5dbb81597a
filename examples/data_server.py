"""A server of tf.data service, as many programs start it: the dispatcher, or one that reads (--dispatcher).

data_service.py has the line that starts it.
"""

from __future__ import annotations

import argparse

import tensorflow as tf


def main() -> None:
    """Serve until tflaunch ends it, when the workers are done."""
    service = tf.data.experimental.service
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--address", help="what the workers dial")
    parser.add_argument("--dispatcher", help="where the dispatcher is; this is a reader then")
    arguments = parser.parse_args()
    if arguments.dispatcher is None:
        server = service.DispatchServer(service.DispatcherConfig(port=arguments.port))
    else:
        server = service.WorkerServer(
            service.WorkerConfig(
                dispatcher_address=arguments.dispatcher,
                worker_address=arguments.address,
                port=arguments.port,
            )
        )
    print(f"serves at port {arguments.port}", flush=True)
    server.join()


if __name__ == "__main__":
    main()
