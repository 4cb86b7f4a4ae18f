"""An ordinary model that answers through its response sender, the final mark apart if told `1.`."""

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            word = pb_utils.get_input_tensor_by_name(request, "what").as_numpy().ravel()[0].decode()
            sender = request.get_response_sender()
            value = np.array([[float(word.rstrip("."))]], np.float32)
            answer = pb_utils.InferenceResponse(
                [pb_utils.Tensor("Y", value), pb_utils.Tensor("Z", value)]
            )
            if word.endswith("."):
                sender.send(answer)
                sender.send(flags=FINAL)
            else:
                sender.send(answer, flags=FINAL)
