"""Records the start of each batch, then waits until a file allows it to end.

`begun` in the model's folder has a line for each batch: the ids of its requests. A batch ends when
`go-<id of its first request>` exists there.
"""

import time
from pathlib import Path

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = Path(args["model_repository"])

    def execute(self, requests):
        ids = [request.request_id() for request in requests]
        with (self.folder / "begun").open("a") as begun:
            begun.write(f"{' '.join(ids)}\n")
        while not (self.folder / f"go-{ids[0]}").exists():
            time.sleep(0.005)
        return [pb_utils.InferenceResponse([]) for _ in requests]
