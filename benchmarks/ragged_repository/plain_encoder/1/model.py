"""The sentence encoder as it is usually written: joins requests of one shape and runs them."""

import os
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        # As ge_runtime opens its sessions, so that only the batching differs.
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.enable_mem_pattern = False
        path = Path(args["model_repository"], args["model_version"], "model.onnx")
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

    def execute(self, requests):
        ids = np.concatenate([_input(request, "input_ids") for request in requests])
        lengths = np.concatenate([_input(request, "lengths") for request in requests])
        mask = (np.arange(ids.shape[1]) < lengths).astype(np.int64)
        (embeddings,) = self._session.run(None, {"input_ids": ids, "attention_mask": mask})
        responses, end = [], 0
        for request in requests:
            start, end = end, end + len(_input(request, "lengths"))
            tensor = pb_utils.Tensor("embedding", embeddings[start:end])
            responses.append(pb_utils.InferenceResponse([tensor]))
        return responses


def _input(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()
