"""A child that sleeps, ended by Process.terminate()."""

import multiprocessing
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        child.terminate()
        child.join(timeout=3)
        text = np.array([f"exit code {child.exitcode}"], dtype=object)
        child.kill()
        child.join()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", text)]) for _ in requests]
