"""Spell a word with one response for each letter: a decoupled model."""

from __future__ import annotations  # Triton adds the classes of pb_utils after the import

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """One instance of the model."""

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        """Send the answers with each request's sender, and return nothing."""
        for request in requests:
            spell(request)


def spell(request: pb_utils.InferenceRequest) -> None:
    """Send the letters, then the final flag."""
    sender = request.get_response_sender()
    (word,) = request.inputs()
    for letter in word.as_numpy().item().decode():
        if sender.is_cancelled():
            break
        tensor = pb_utils.Tensor("LETTER", np.array([letter], object))
        sender.send(pb_utils.InferenceResponse([tensor]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
