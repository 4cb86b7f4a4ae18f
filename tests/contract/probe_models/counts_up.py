"""Decoupled: sends the numbers from 0 below IN[0], one by one.

IN[1] selects the form: 0 ends with the final flag alone, 1 flags the last number, 2 sends an error
first, 3 sends an error last.
"""

import numpy as np
import triton_python_backend_utils as pb_utils


def fault(text):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text))


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count, how = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().astype(int)
            sender = request.get_response_sender()
            if how == 2:
                sender.send(fault("a bad beginning"))
            for number in range(count):
                last = how == 1 and number == count - 1
                tensor = pb_utils.Tensor("OUT", np.array([number], np.float32))
                sender.send(pb_utils.InferenceResponse([tensor]), flags=int(last))
            if how == 3:
                sender.send(fault("a bad end"), flags=1)
            elif how != 1 or count == 0:
                sender.send(flags=1)
