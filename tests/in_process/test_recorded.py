"""The API against what NVIDIA's package has answered to the same calls (`recorded.jsonl`)."""

import json
from pathlib import Path

import pytest

import tritonserver
from in_process import cases
from reference_server.core.profiles import V2_51

_LINES = Path(__file__).with_name("recorded.jsonl").read_text().splitlines()
RECORDED = dict(map(json.loads, _LINES))
#: Results that differ on purpose, as changes of the recorded ones.
DIFFERENCES = {
    # NVIDIA's constructor ignores the error, and the metric of such a family crashes the process.
    "custom_metrics": {
        "bad_name": {"raised": "InvalidArgumentError", "text": "Invalid metric name"},
        "other_kind": {
            "raised": "InvalidArgumentError",
            "text": "Family name already exists with different type",
        },
    },
    # There, responses that are not garbage-collected yet keep the server from stopping.
    "stop": None,
    "stop_twice": {"raised": "InvalidArgumentError", "text": "Server not started"},
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    root = cases.write_models(tmp_path_factory.mktemp("in_process") / "models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tritonserver._api, "PROFILE", V2_51)
        return json.loads(json.dumps(dict(cases.results(tritonserver, root))))


def test_all_cases_are_recorded(found):
    assert list(found) == list(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_result_is_that_of_the_real_package(found, name):
    recorded, change = RECORDED[name], DIFFERENCES.get(name, {})
    is_part = name in DIFFERENCES and recorded and change and "raised" not in recorded
    expected = recorded | change if is_part else DIFFERENCES.get(name, recorded)
    assert found[name] == expected
