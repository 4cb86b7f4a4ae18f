"""The models of this repository on one simulated card, several instances each."""

import os
import shutil
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from runtime.support.ascend import ENVIRONMENT

from ge_runtime import Runtime
from ge_runtime.cli.build import build
from ge_runtime.cli.config_pbtxt import read_model_config
from ge_runtime.npu.driver.card import PROCESS_CARDS

REPOSITORY = Path(__file__).parents[4] / "model_repository"
COST = "launch_us=1000, element_ns=1000, element2_ns=0"
GEARS = {
    "text_encoder": ("gears.batch,tokens", "1x32, 8x32, 4x128, 1x512"),
    "ge_classifier": ("gears.batch,height,width", "1x32x32, 8x32x32, 1x256x256"),
}
INSTANCES = 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Model name: its folder, with model.om beside model.onnx."""
    built = {}
    with pytest.MonkeyPatch.context() as patch:
        for variable, first in ENVIRONMENT.items():
            patch.setenv(variable, first, prepend=os.pathsep)
        for name, (key, gears) in GEARS.items():
            source = REPOSITORY / name / "1" / "model.onnx"
            if not source.exists():
                pytest.skip(f"{source} is not there: `make models`")
            folder = tmp_path_factory.mktemp("repository") / name
            (folder / "1").mkdir(parents=True)
            shutil.copy(source, folder / "1")
            text = (REPOSITORY / name / "config.pbtxt").read_text()
            for parameter, value in {key: gears, "devices": "npu:0", "cost": COST}.items():
                text += f'parameters {{ key: "{parameter}" value {{ string_value: "{value}" }} }}\n'
            (folder / "config.pbtxt").write_text(text)
            build(folder, folder / "1", ["AscendSimulator"], None)
            built[name] = folder
    return built


def opened(folder, name, stack):
    runtime = Runtime.open(folder / "1", read_model_config(folder), instance_name=name)
    stack.callback(runtime.close)
    return runtime


def on_host(folder, stack):
    config = read_model_config(folder)
    config["parameters"]["devices"] = {"string_value": "cpu"}
    runtime = Runtime.open(folder / "1", config, instance_name="host")
    stack.callback(runtime.close)
    return runtime


def texts(rng):
    ids = [rng.integers(1000, 20000, (1, rng.integers(1, 120))) for _ in range(5)]
    return [{"input_ids": own, "lengths": np.full((1, 1), own.shape[1], np.int32)} for own in ids]


def images(rng):
    sizes = rng.integers(20, 33, (5, 2))
    return [{"image": rng.random((1, 1, *size), dtype=np.float32)} for size in sizes]


REQUESTS = {"text_encoder": (texts, "embedding"), "ge_classifier": (images, "logits")}


@pytest.mark.brute_force
def test_answers_are_the_hosts_and_memory_is_weights_once_and_one_workspace(folders, machine):
    with ExitStack() as stack:
        cards = {
            (name, number): opened(folder, f"{name}_{number}", stack)
            for name, folder in folders.items()
            for number in range(INSTANCES)
        }
        hosts = {name: on_host(folder, stack) for name, folder in folders.items()}
        plans = [cards[name, 0].plan for name in folders]
        assert PROCESS_CARDS._open[0].memory.allocated_bytes == {
            "weights": sum(plan.weights_bytes for plan in plans),
            "workspace": max(plan.workspace_bytes for plan in plans),
        }
        before = machine.report.mallocs
        answers = {}

        def serve(name, number):
            requests_of, _ = REQUESTS[name]
            answers[name, number] = [
                cards[name, number].infer(requests_of(np.random.default_rng(seed)))
                for seed in range(2)
            ]

        threads = [threading.Thread(target=serve, args=key) for key in cards]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert machine.report.mallocs == before
        for (name, _), given in answers.items():
            requests_of, output = REQUESTS[name]
            for seed, answers in enumerate(given):
                expected = hosts[name].infer(requests_of(np.random.default_rng(seed)))
                for own, right in zip(answers, expected, strict=True):
                    np.testing.assert_allclose(own[output], right[output], rtol=1e-3, atol=1e-3)
