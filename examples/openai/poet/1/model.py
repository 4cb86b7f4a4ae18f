"""Answer prompts with the first words of a poem, one response per word if the client streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

POEM = ["The", "road", "is", "long", ",", "the", "night", "is", "clear", "."]


class TritonPythonModel:
    """A decoupled model with the tensors that NVIDIA's OpenAI-compatible front end uses."""

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        for request in requests:
            prompt = self.value(request, "text_input", b"").decode()
            words = POEM[: self.value(request, "max_tokens", 16)]
            parts = [f" {word}" for word in words]
            if not self.value(request, "stream", False):
                parts = ["".join(parts)]
            sender = request.get_response_sender()
            for part in parts:
                asked, given = np.array(
                    [[[len(text.split())]] for text in (prompt, part)], np.int32
                )
                outputs = [
                    pb_utils.Tensor("text_output", np.array([[part]], np.object_)),
                    pb_utils.Tensor("num_input_tokens", asked),
                    pb_utils.Tensor("num_output_tokens", given),
                ]
                sender.send(pb_utils.InferenceResponse(outputs))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def value(self, request: pb_utils.InferenceRequest, name: str, default: Any) -> Any:
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        return default if tensor is None else tensor.as_numpy().item()
