"""JPEG files through the example `examples/images`: on both servers, and on a simulated card.

The graph is that of ge_classifier. config.pbtxt configures decoding, resizing and division by 255,
which clients of ge_classifier do themselves, so the answers must equal those of ge_classifier.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.ascend_repository import environment
from support.servers import ROOT, Server, start_reference_server, start_tritonserver
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

pillow = pytest.importorskip("PIL.Image", reason="JPEG files need Pillow")
pytestmark = pytest.mark.oracle

MODEL = "jpeg_classifier"
DIGITS = ((40, 60), (97, 64), (300, 200))
"""Height and width of the files."""


def stroke(height: int, width: int) -> np.ndarray:
    """Return a bright stroke on a dark ground, similar to a 1."""
    down, across = np.mgrid[0:height, 0:width]
    far = np.abs(across - width * (0.55 - 0.1 * down / height)) / width
    ink = 255 * np.exp(-((far * 14) ** 2)) * (np.abs(down / height - 0.5) < 0.36)
    return ink.astype(np.uint8)


def jpeg(pixels: np.ndarray, **more: Any) -> bytes:
    data = io.BytesIO()
    pillow.fromarray(pixels).save(data, "JPEG", quality=95, **more)
    return data.getvalue()


FILES = [
    *(jpeg(stroke(*sides)) for sides in DIGITS),
    jpeg(stroke(64, 64), progressive=True),
    jpeg(np.dstack([stroke(64, 64)] * 3)),
]


def logits(server: Server, *files: bytes) -> np.ndarray:
    given = InferInput("jpeg", [len(files), 1], "BYTES")
    given.set_data_from_numpy(np.array([[file] for file in files], object))
    with InferenceServerClient(server.http, network_timeout=60) as client:
        return client.infer(MODEL, [given]).as_numpy("logits")


def expected(server: Server, file: bytes) -> np.ndarray:
    """Return ge_classifier's response for the picture that a client has decoded."""
    picture = pillow.open(io.BytesIO(file)).convert("L")
    picture = picture.crop((0, 0, *(side // 2 * 2 for side in picture.size)))
    small = np.asarray(picture.resize((32, 32), pillow.Resampling.BILINEAR), np.float32) / 255
    given = InferInput("image", [1, 1, 32, 32], "FP32")
    given.set_data_from_numpy(small[None, None])
    with InferenceServerClient(server.http, network_timeout=60) as client:
        return client.infer("ge_classifier", [given]).as_numpy("logits")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    ignored = shutil.ignore_patterns("__pycache__", "*.pt2", ".cache")
    shutil.copytree(ROOT / "examples" / "images", folder, dirs_exist_ok=True, ignore=ignored)
    own = ROOT / "model_repository" / "ge_classifier"
    shutil.copytree(own, folder / "ge_classifier", ignore=ignored)
    shutil.copy(own / "1" / "model.onnx", folder / MODEL / "1")
    # The real server's Python lacks Pillow: a version folder is among those that it imports from.
    packages = Path(pillow.__file__).parents[1]
    for name in ("PIL", "pillow.libs"):
        if (packages / name).is_dir():
            (folder / MODEL / "1" / name).symlink_to(packages / name)
    return folder


@contextlib.contextmanager
def on_card(repository: Path) -> Iterator[Server]:
    """Run the example's folder on a simulated card, only with model.om added."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, text in environment().items():
            patch.setenv(variable, text)
        config = repository / MODEL / "config.pbtxt"
        text = config.read_text()
        config.write_text(text + 'parameters { key: "devices" value { string_value: "npu:0" } }\n')
        try:
            command = [sys.executable, "-m", "ge_runtime.cli", "build", str(repository / MODEL)]
            subprocess.run(command, check=True, env=dict(os.environ))
            with start_reference_server(repository, allow_metrics=False) as server:
                yield server
        finally:
            config.write_text(text)


@pytest.fixture(scope="module", params=["tritonserver", "reference server", "simulated card"])
def served(
    request: pytest.FixtureRequest, oracle_installed: None, repository: Path
) -> Iterator[Server]:
    if request.param == "simulated card":
        context = on_card(repository)
    else:
        start = {"tritonserver": start_tritonserver, "reference server": start_reference_server}
        context = start[request.param](repository, allow_metrics=False)
    with context as server:
        yield server


def test_files_are_answered_as_the_pictures_in_them(served: Server):
    found = logits(served, *FILES)
    for answer, file in zip(found, FILES, strict=True):
        # 1/255 as FP16 is 0.02 % more.
        np.testing.assert_allclose(answer, expected(served, file)[0], atol=0.02)


def test_a_row_without_a_picture_is_told_and_others_are_answered(served: Server):
    with pytest.raises(InferenceServerException, match=r"input 'jpeg', row 1: found 3 bytes that"):
        logits(served, FILES[0], b"abc")
    assert logits(served, FILES[0]).shape == (1, 10)


def test_the_log_tells_what_decodes(served: Server):
    by = "DVPP of npu:0" if "npu:0 is AscendSimulator" in served.log else "Pillow"
    assert f"image from JPEG files, decoded by {by}" in served.log
