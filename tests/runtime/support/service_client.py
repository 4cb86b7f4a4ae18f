"""A client of a device service, as a process: `python -m runtime.support.service_client FILE`.

Says the service's process once it has executed, then executes until its input ends.
"""

import select
import sys
from pathlib import Path

from runtime.engines.conformance_engine import token_batch

from ge_runtime.engines.artifact import Artifact
from ge_runtime.service.client import ServicePlace


def main(path):
    place = ServicePlace("cpu", "client process")
    engine = place.open([Artifact(Path(path), "onnxruntime", "")], threads=1, outputs=["embedding"])
    place.memory.allocate("inputs", 1 << 20)
    inputs, _ = token_batch(8, 32)
    engine.run(inputs, {"embedding": None})
    print(place.pid, flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        engine.run(inputs, {"embedding": None})
    engine.close()
    place.close()


main(sys.argv[1])
