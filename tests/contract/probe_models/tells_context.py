"""Tells the context of its trace, and those of the requests that it sends to NAME, if it has one.

The first of these is sent on behalf of the request, the second is not.
"""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.told(request)]) for request in requests]

    def told(self, request):
        context = request.trace().get_context()
        contexts = ["None" if context is None else context]
        name = pb_utils.get_input_tensor_by_name(request, "NAME").as_numpy().item().decode()
        if name:
            nobody = pb_utils.Tensor("NAME", np.array([""], object))
            for traced in ({"trace": request.trace()}, {}):
                asked = pb_utils.InferenceRequest(
                    model_name=name, requested_output_names=["TOLD"], inputs=[nobody], **traced
                ).exec()
                told = pb_utils.get_output_tensor_by_name(asked, "TOLD").as_numpy()
                contexts.append(told[0].decode())
        return pb_utils.Tensor("TOLD", np.array(contexts, object))
