"""A client of a device service, as a process: `python -m runtime.support.service_client FILE`.

Says the service's process once it has executed, then executes until its input ends. With "fork" as
a second argument it has forked a process by then, which sleeps, and says which, and what that one
has met.
"""

import os
import select
import signal
import sys
import warnings
from pathlib import Path

from runtime.engines.conformance_engine import token_batch

from ge_runtime.engines.artifact import Artifact
from ge_runtime.errors import EngineLost
from ge_runtime.npu.service.backend import ServiceBackend


def main(path, forks):
    backend = ServiceBackend("cpu", "client process")
    engine = backend.open(
        [Artifact(Path(path), "onnxruntime", "")], threads=1, outputs=["embedding"]
    )
    backend.memory.allocate("inputs", 1 << 20)
    inputs, _ = token_batch(8, 32)
    engine.run(inputs, {"embedding": None})
    print(backend.pid, flush=True)
    if forks:
        fork(backend, engine, inputs)
    while not select.select([sys.stdin], [], [], 0)[0]:
        engine.run(inputs, {"embedding": None})
    engine.close()
    backend.close()


def fork(backend, engine, inputs):
    warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            engine.run(inputs, {"embedding": None})
        except EngineLost as lost:
            os.write(writing, str(lost).encode())
        backend.close()
        os.close(writing)
        while True:
            signal.pause()
    os.close(writing)
    with os.fdopen(reading) as met:
        print(child, met.read(), sep="\n", flush=True)
    engine.run(inputs, {"embedding": None})
    print("the client goes on", flush=True)


main(sys.argv[1], "fork" in sys.argv[2:])
