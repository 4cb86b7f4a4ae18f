"""Return the input in a hundred responses."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            given = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
            for _ in range(100):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", given)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
