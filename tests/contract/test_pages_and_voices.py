"""ocr_pipeline, which calls other models, and voice_activity, on both servers."""

from __future__ import annotations

import numpy as np
import pytest
from support.servers import ROOT, Server
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from model_factory.ocr_accuracy import page_pixels, score
from model_factory.ocr_pages import read_pages
from model_factory.voice_accuracy import probabilities
from model_factory.voice_speech import read_speech

pytestmark = pytest.mark.oracle

PAGES = {page.name: page for page in read_pages()}
CHUNKS = 40
# Both instances of ocr_pipeline at once, and more: what waits meets in the batches of the graphs.
AT_ONCE = 4


def tensor(name: str, datatype: str, values: np.ndarray) -> InferInput:
    given = InferInput(name, values.shape, datatype)
    given.set_data_from_numpy(values)
    return given


def read(server: Server, *images: np.ndarray) -> list[dict[str, np.ndarray]]:
    """Return the texts on these images, which are sent at the same time."""
    with InferenceServerClient(server.http, concurrency=AT_ONCE, network_timeout=300) as client:
        asked = [
            client.async_infer("ocr_pipeline", [tensor("image", "UINT8", image)])
            for image in images
        ]
        results = [pending.get_result() for pending in asked]
    names = ("text", "score", "box")
    return [{name: result.as_numpy(name) for name in names} for result in results]


def hear(server: Server, *streams: np.ndarray) -> np.ndarray:
    """Return the probabilities of speech, [streams, chunks]; requests of streams alternate."""
    heard = np.zeros((len(streams), CHUNKS), np.float32)
    with InferenceServerClient(server.http, network_timeout=60) as client:
        for index in range(CHUNKS):
            for number, stream in enumerate(streams):
                chunk = stream[None, 512 * index : 512 * (index + 1)]
                result = client.infer(
                    "voice_activity",
                    [tensor("samples", "FP32", chunk)],
                    sequence_id=1187 + number,
                    sequence_start=index == 0,
                    sequence_end=index == CHUNKS - 1,
                )
                heard[number, index] = result.as_numpy("probability").item()
    return heard


@pytest.fixture(params=["triton", "reference"])
def server(request: pytest.FixtureRequest) -> Server:
    return request.getfixturevalue(request.param)


def test_pages_are_read_alike_alone_and_in_company(triton: Server, reference: Server):
    pages = [PAGES["receipt_white_on_blue"], PAGES["upside_down"], PAGES["small_print"]]
    images = [page_pixels(page) for page in pages]
    ours, real = read(reference, *images), read(triton, *images)
    alone = read(reference, images[0])
    for page, some, other in zip(
        [*pages, pages[0]], [*ours, *alone], [*real, real[0]], strict=True
    ):
        assert some["text"].tolist() == other["text"].tolist()
        np.testing.assert_allclose(some["score"], other["score"], atol=1e-4)
        np.testing.assert_allclose(some["box"], other["box"], atol=0.5)
        found = score(page, [text.decode() for text in some["text"]])
        assert found.exact >= found.lines - 1


def test_an_empty_page_has_no_lines(server: Server):
    (found,) = read(server, np.full((50, 70, 3), 255, np.uint8))
    assert {name: values.shape for name, values in found.items()} == {
        "text": (0,),
        "score": (0,),
        "box": (0, 4, 2),
    }


def test_a_page_without_pixels_is_refused(server: Server):
    with pytest.raises(InferenceServerException, match=r"found shape \[0, 7, 3\], expected one"):
        read(server, np.zeros((0, 7, 3), np.uint8))


def test_streams_that_take_turns_are_heard_as_alone(server: Server):
    speech = read_speech()
    streams = [speech["english"][: 512 * CHUNKS], speech["chinese"][: 512 * CHUNKS]]
    graph = (ROOT / "model_repository/voice_activity/1/model.onnx").read_bytes()
    expected = [probabilities(graph, stream) for stream in streams]
    np.testing.assert_allclose(hear(server, *streams), expected, atol=1e-4)
