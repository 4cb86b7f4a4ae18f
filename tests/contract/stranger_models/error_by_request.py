"""An exception of the model's own, answered as this request's error."""

import triton_python_backend_utils as pb_utils


class TooLong(ValueError):
    pass


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            try:
                raise TooLong(f"{request.request_id()}: 3 of 2 tokens")
            except TooLong as error:
                failed = pb_utils.TritonError(str(error), pb_utils.TritonError.INVALID_ARG)
                responses.append(pb_utils.InferenceResponse(output_tensors=[], error=failed))
        return responses
