"""Decoupled: the numbers from 0 below the first of IN, one by one.

The second of IN says how: 0 ends with a mark alone, 1 marks the last number, 3 sends an error last;
4 sends the number of its process alone, waits until nobody wants more, and leaves a file.
"""

import os
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


def told(number):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], np.float32))])


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            count, how = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy().astype(int)
            sender = request.get_response_sender()
            if how == 4:
                sender.send(told(os.getpid()))
                while not request.is_cancelled():
                    time.sleep(0.005)
                Path(__file__).with_name(f"{os.getpid()}.cancelled").touch()
            for number in range(count):
                sender.send(told(number), flags=int(how == 1 and number == count - 1))
            if how == 3:
                fault = pb_utils.TritonError("a bad end")
                sender.send(pb_utils.InferenceResponse(error=fault), flags=1)
            elif how != 1:
                sender.send(flags=1)
