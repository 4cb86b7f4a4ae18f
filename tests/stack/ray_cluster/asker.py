"""Asks ge_classifier by BLS, if HOW is "again" after an unload and a load of it; tells of each."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils

LEAF = "ge_classifier"


class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        image = pb_utils.get_input_tensor_by_name(request, "IMAGE").as_numpy()
        how = pb_utils.get_input_tensor_by_name(request, "HOW").as_numpy()[0]
        told = []
        if how == b"again":
            pb_utils.unload_model(LEAF)
            while self._is_ready():
                time.sleep(0.005)
            told.append(self._ask(image).error().message())
            pb_utils.load_model(LEAF)
        told.append(str(self._is_ready()))
        answer = self._ask(image)
        if answer.has_error():
            return pb_utils.InferenceResponse(error=answer.error())
        logits = pb_utils.get_output_tensor_by_name(answer, "logits").as_numpy()
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("LOGITS", logits),
                pb_utils.Tensor("TOLD", np.array(told, object)),
            ]
        )

    def _is_ready(self):
        try:
            return pb_utils.is_model_ready(LEAF)
        except pb_utils.TritonModelException:  # no version of it is loaded
            return False

    def _ask(self, image):
        asked = pb_utils.InferenceRequest(
            model_name=LEAF,
            requested_output_names=["logits"],
            inputs=[pb_utils.Tensor("image", image)],
        )
        return asked.exec()
