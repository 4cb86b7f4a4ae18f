"""Exported folders, as `ge-runtime init` writes them, on both servers."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime.support import exports
from support.servers import COMPLETE, Server, start_reference_server, start_tritonserver
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

from ge_runtime import cli

pillow = pytest.importorskip("PIL.Image", reason="images need Pillow")
pytestmark = pytest.mark.oracle

FOLDERS = {
    "sentences": exports.sentences,
    "nli": exports.classifier,
    "images": exports.images,
    "speech": exports.speech,
}


def png(height: int, width: int) -> bytes:
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3))
    data = io.BytesIO()
    pillow.fromarray(pixels.astype(np.uint8)).save(data, "PNG")
    return data.getvalue()


def rows(*items: bytes) -> np.ndarray:
    return np.array([[item] for item in items], object)


AUDIO = exports.random(2, 900)
REQUESTS: dict[str, dict[str, np.ndarray]] = {
    "sentences": {"text": rows(b"where is my parcel", b"a", b"word " * 50)},
    "nli": {
        "text": rows(b"is it", b"where is a parcel ?"),
        "text_pair": rows(b"it is", b"where where where where"),
    },
    "images": {"image": rows(png(30, 50), png(24, 32))},
    "speech": {"audio": AUDIO},
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    repository = folder / "repository"
    for name, write in FOLDERS.items():
        source = str(write(folder / name))
        assert cli.main(["init", source, "--into", str(repository), "--in-process"]) == 0
    # The real server's Python lacks Pillow: a version folder is among those that it imports from.
    packages = Path(pillow.__file__).parents[1]
    for name in ("PIL", "pillow.libs"):
        if (packages / name).is_dir():
            (repository / "images_input" / "1" / name).symlink_to(packages / name)
    return repository


@pytest.fixture(scope="module")
def clients(
    oracle_installed: None, repository: Path
) -> Iterator[tuple[InferenceServerClient, InferenceServerClient]]:
    flags: dict[str, Any] = COMPLETE | {"allow_grpc": False, "model_load_thread_count": 4}
    with (
        start_tritonserver(repository, allow_metrics=False, **flags) as real,
        start_reference_server(repository, allow_metrics=False, **flags) as reference,
        client(real) as first,
        client(reference) as second,
    ):
        yield first, second


def client(server: Server) -> InferenceServerClient:
    return InferenceServerClient(server.http, network_timeout=60)


def answer(client: InferenceServerClient, name: str, classes: int = 0) -> dict[str, np.ndarray]:
    inputs = []
    for tensor, content in REQUESTS[name].items():
        kind = "BYTES" if content.dtype == object else "FP32"
        inputs.append(InferInput(tensor, content.shape, kind))
        inputs[-1].set_data_from_numpy(content)
    outputs = [
        InferRequestedOutput(own["name"], class_count=classes if own["name"] == "score" else 0)
        for own in client.get_model_metadata(name)["outputs"]
    ]
    found = client.infer(name, inputs, outputs=outputs)
    return {own.name(): found.as_numpy(own.name()) for own in outputs}


@pytest.mark.parametrize("name", FOLDERS)
def test_both_servers_give_the_same_answers(clients, name):
    real, reference = (answer(own, name) for own in clients)
    assert real.keys() == reference.keys()
    for output, expected in real.items():
        assert reference[output].shape == expected.shape
        if expected.dtype == object:
            assert reference[output].tolist() == expected.tolist()
        else:
            np.testing.assert_allclose(reference[output], expected, rtol=1e-5, atol=1e-6)
