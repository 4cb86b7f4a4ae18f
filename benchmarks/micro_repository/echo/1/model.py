"""Return the input."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = pb_utils.get_input_tensor_by_name(request, "INPUT").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", given)])
