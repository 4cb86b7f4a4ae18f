"""text_pipeline_resident of examples/: embeddings stay in the device service between two models.

On both servers, each model has a separate process, and requests are batched again between them. The
answers must equal those of text_pipeline.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from contract.ascend_repository import STARTERS
from contract.test_same_repository import (
    Request,
    as_input,
    chinese,
    english,
    many_at_once,
    one_at_a_time,
    text,
)
from runtime.support.services import Services
from support.servers import COMPLETE, ROOT, Server
from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.oracle

EXAMPLE = ROOT / "examples" / "resident"
PIPELINE = "text_pipeline_resident"
ABSOLUTE = 1e-4
COST = """
parameters { key: "cost" value { string_value: "launch_us=100, element_ns=1000, element2_ns=0" } }
"""


def write_repository(source: Path, folder: Path) -> Path:
    """Write the example's models, with code and graphs of the models they are based on."""
    shutil.copytree(EXAMPLE, folder)
    shutil.copytree(source / "tokenizer", folder / "tokenizer")
    for model in ("text_encoder", "text_classifier"):
        own = folder / f"{model}_resident"
        ignored = shutil.ignore_patterns("__pycache__", ".cache", "config.pbtxt")
        shutil.copytree(source / model, own, ignore=ignored, dirs_exist_ok=True)
        with (own / "config.pbtxt").open("a") as config:
            config.write(COST)  # which each instance would otherwise measure for a second
    return folder


@pytest.fixture(scope="module", params=STARTERS)
def served(
    request: pytest.FixtureRequest,
    oracle_installed: None,
    real_repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Server, Services]]:
    """Run either server with these models and their device service."""
    folder = tmp_path_factory.mktemp("resident")
    repository = write_repository(real_repository, folder / "models")
    start, flags = STARTERS[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        with (
            Services(folder / "ge_runtime") as services,
            start(repository, **COMPLETE, allow_grpc=False, allow_metrics=False, **flags) as server,
        ):
            yield server, services


def make_requests() -> list[Request]:
    """Return requests with one or several texts in two languages."""
    rng = random.Random(20261124)
    own = [text(rng.choice([english, chinese])(rng, rng.randint(1, 60))) for _ in range(12)]
    own += [text(*(english(rng, rng.randint(1, 40)) for _ in range(n))) for n in (2, 3, 5, 8)]
    return own


REQUESTS = make_requests()


def test_answers_are_those_of_the_pipeline_whose_tensors_travel(
    served: tuple[Server, Services], reference: Server
):
    server, services = served
    resident = [replace(request, model=PIPELINE) for request in REQUESTS]
    expected = list(one_at_a_time(reference, REQUESTS))
    for found, wanted in zip(many_at_once(server, resident), expected, strict=True):
        assert found["outputs"].keys() == wanted["outputs"].keys()
        for name, output in wanted["outputs"].items():
            values = found["outputs"][name]["values"]
            if output["datatype"] == "FP32":
                np.testing.assert_allclose(values, output["values"], rtol=0, atol=ABSOLUTE)
            else:
                np.testing.assert_array_equal(values, output["values"])
    # All resident rows were read: none remains between two requests.
    assert [client["resident_rows"] for client in services.stats()["clients"]] == [0, 0]


def test_who_makes_up_a_handle_gets_an_error(served: tuple[Server, Services]):
    server, _ = served
    forged = np.arange(1, 5, dtype=np.uint64)[None]
    request = Request("text_classifier_resident", "embedding", "UINT64", forged)
    with (
        InferenceServerClient(server.http) as client,
        pytest.raises(InferenceServerException) as raised,
    ):
        client.infer(request.model, [as_input(request)])
    assert "found a handle of a row that is not on the device" in raised.value.message()
    assert raised.value.status() == "503"
