"""A simulated card that the device service owns, for models of other processes."""

import os

import numpy as np
import pytest
from runtime.support.ascend import ENVIRONMENT, SITE, compile_om, token_gears
from runtime.support.configs import encoder_config
from runtime.support.graphs import ENCODER, encode, write
from runtime.support.pipelines import SCORES, WEIGHTS, compile_stages
from runtime.support.services import wait_for_end
from support.waiting import until

from ge_runtime import Runtime
from ge_runtime.errors import NoDevice, RuntimeFault

pytestmark = pytest.mark.brute_force

CONFIG = encoder_config(
    {
        "placement": "service",
        "devices": "npu:0",
        "engine": "om",
        "cost": "launch_us=100, element_ns=100, element2_ns=0",
    }
)
LOGITS = SCORES | {"name": "logits"}


def request(*row):
    return {"input_ids": np.array([row]), "lengths": np.array([[len(row)]], np.int32)}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    write(ENCODER, "onnxruntime", folder)
    compile_om(folder, *token_gears((8, 8), (8, 32)))
    return folder


@pytest.fixture
def card(services, monkeypatch):
    """The services, in an environment with a simulated card."""
    for name, first in ENVIRONMENT.items():
        monkeypatch.setenv(name, os.pathsep.join((first, os.environ.get(name, ""))))
    monkeypatch.syspath_prepend(str(SITE))
    return services


def test_clients_share_the_weights_and_the_workspace_of_the_card(card, compiled):
    runtimes = [
        Runtime.open(compiled, CONFIG, instance_name=f"encoder_{number}") for number in range(3)
    ]
    assert any("AscendSimulator" in line for line in runtimes[0].report)
    for number, runtime in enumerate(runtimes):
        rows = [[number + 1, 2, 3], [4] * (number + 9)]
        answers = runtime.infer([request(*row) for row in rows])
        for answer, row in zip(answers, rows, strict=True):
            np.testing.assert_allclose(answer["embedding"], encode([row]), rtol=1e-3)
        assert runtime.gauges()["allocations_after_freeze"] == 0
    stats = card.stats("npu:0")
    assert stats["place"]["hardware"] == "AscendSimulator"
    assert [model["clients"] for model in stats["models"]] == [1, 1, 1]
    assert len({model["content"] for model in stats["models"]}) == 1
    for runtime in runtimes:
        runtime.close()
    until(lambda: not card.stats("npu:0")["clients"], "their leave")
    assert card.stats("npu:0")["models"] == []


def test_stages_of_equal_content_are_on_the_card_once(card, tmp_path):
    """Two clients share some stages, and pass tensors between stages on the card."""
    compile_stages(tmp_path)
    runtimes = []
    for outputs, stages in [(SCORES, "embed, pool, head, scale"), (LOGITS, "embed, pool, head")]:
        config = {**CONFIG, "output": [outputs]}
        config["parameters"] = CONFIG["parameters"] | {"stages": {"string_value": stages}}
        runtimes.append(Runtime.open(tmp_path, config, instance_name=stages))
    for name, weight, runtime in [("scores", 2, runtimes[0]), ("logits", 1, runtimes[1])]:
        (answer,) = runtime.infer([request(5, 6, 10)])
        np.testing.assert_allclose(answer[name], weight * 7 * WEIGHTS, rtol=1e-3)
        assert runtime.gauges()["allocations_after_freeze"] == 0
    stats = card.stats("npu:0")
    assert [len(model["artifacts"]) for model in stats["models"]] == [4, 3]
    weights = [model["weights"] for model in stats["models"]]
    assert stats["memory"]["weights"] < sum(weights)
    for runtime in runtimes:
        runtime.close()


def test_lost_card_is_had_back_with_a_new_service(card, compiled, monkeypatch):
    monkeypatch.setenv("ASCEND_SIMULATOR_FAULTS", "device_lost@400")
    runtime = Runtime.open(compiled, CONFIG, instance_name="encoder_0")
    monkeypatch.delenv("ASCEND_SIMULATOR_FAULTS")  # the next service has a sound card
    first = card.pid("npu:0")
    answer = None
    for _ in range(1000):
        (answer,) = runtime.infer([request(5, 6)])
        if isinstance(answer, RuntimeFault):
            break
    assert isinstance(answer, RuntimeFault), "the card was not lost"
    wait_for_end(first)
    until(lambda: card.pid("npu:0") not in (None, first), "the next service")
    until(runtime.is_ready, "what the runtime has of it")
    (answer,) = runtime.infer([request(5, 6)])
    np.testing.assert_allclose(answer["embedding"], encode([[5, 6]]), rtol=1e-3)
    runtime.close()


def test_card_that_is_not_there_is_reported_by_its_service(card, compiled):
    config = encoder_config({"placement": "service", "devices": "npu:7", "engine": "om"})
    with pytest.raises(NoDevice, match="npu:7"):
        Runtime.open(compiled, config, instance_name="encoder_0")
    assert card.stats("npu:7")["clients"] == []
