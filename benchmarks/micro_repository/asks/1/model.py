"""Call the model `step`, which adds one."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        asked = pb_utils.InferenceRequest(
            model_name="step",
            requested_output_names=["OUTPUT"],
            inputs=[pb_utils.get_input_tensor_by_name(request, "INPUT")],
        )
        answer = asked.exec()
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        return pb_utils.InferenceResponse(answer.output_tensors())
