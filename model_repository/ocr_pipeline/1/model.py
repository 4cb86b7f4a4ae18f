"""Read the lines of text on a page: call three models of the same server, and connect them."""

import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils

from .page import Page

LINES = 16
"""Maximum number of lines in a request: the max_batch_size of ocr_angle and ocr_recognition."""


class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*map(_answer, requests))


async def _answer(request):
    image = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
    if not image.size:
        fault = f"input 'image': found shape {list(image.shape)}, expected one pixel or more"
        error = pb_utils.TritonError(fault, pb_utils.TritonError.INVALID_ARG)
        return pb_utils.InferenceResponse(error=error)
    try:
        texts, scores, boxes = await _read(Page(image))
    except pb_utils.TritonModelException as error:
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
    outputs = {"text": texts, "score": scores, "box": boxes}
    return pb_utils.InferenceResponse(
        [pb_utils.Tensor(name, outputs[name]) for name in request.requested_output_names()]
    )


async def _read(page):
    """Return texts BYTES [n], scores FP32 [n] and boxes FP32 [n, 4, 2] of a page's lines."""
    (probability,) = await _ask("ocr_detection", "page", page.to_search(), ["probability"])
    page.found(probability)
    texts = np.full(len(page.boxes), b"", object)
    scores = np.zeros(len(page.boxes), np.float32)
    if len(page.boxes):
        (probability,) = await _ask("ocr_angle", "line", page.to_turn(), ["probability"])
        page.turned(probability)
        groups = list(page.to_read())
        answers = await asyncio.gather(
            *(_ask("ocr_recognition", "line", lines, ["text", "score"]) for _, lines in groups)
        )
        for (indices, _), (text, score) in zip(groups, answers, strict=True):
            texts[indices], scores[indices] = text[:, 0], score[:, 0]
    return texts, scores, page.boxes


async def _ask(model, name, rows, outputs):
    """Call another model with these rows, and return the outputs; several requests if needed."""
    parts = [rows[start : start + LINES] for start in range(0, len(rows), LINES)]
    asked = [
        pb_utils.InferenceRequest(
            model_name=model,
            inputs=[pb_utils.Tensor(name, np.ascontiguousarray(part))],
            requested_output_names=outputs,
        ).async_exec()
        for part in parts
    ]
    answers = await asyncio.gather(*asked)
    for answer in answers:
        if answer.has_error():
            raise pb_utils.TritonModelException(f"{model}: {answer.error().message()}")
    return [
        np.concatenate(
            [pb_utils.get_output_tensor_by_name(answer, output).as_numpy() for answer in answers]
        )
        for output in outputs
    ]
