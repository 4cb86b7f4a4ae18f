"""A temporary folder with a file lock, cleaned up in `finalize` and by atexit."""

import atexit
import fcntl
import tempfile
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.folder = tempfile.TemporaryDirectory()
        atexit.register(self.folder.cleanup)

    def execute(self, requests):
        with (Path(self.folder.name) / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            text = np.array([str(sorted(p.name for p in Path(self.folder.name).iterdir()))], object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]

    def finalize(self):
        self.folder.cleanup()
