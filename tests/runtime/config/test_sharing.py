import pytest
from runtime.support.configs import encoder_config
from runtime.support.parsing import assert_fault, parse

from ge_runtime.config.sharing import Sharing


def test_models_execute_in_their_own_process_unless_told_otherwise():
    assert parse(encoder_config()).sharing is None
    assert parse(encoder_config({"placement": "local"})).sharing is None


@pytest.mark.parametrize(
    ("parameters", "sharing"),
    [
        ({}, Sharing(1.0, 0)),
        ({"service_weight": "2.5"}, Sharing(2.5, 0)),
        ({"service_weight": "0.001", "service_priority": "3"}, Sharing(0.001, 3)),
    ],
)
def test_part_in_the_device_service_is_read(parameters, sharing):
    assert parse(encoder_config({"placement": "service", **parameters})).sharing == sharing


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        ({"placement": "cloud"}, "parameter 'placement': found 'cloud', expected 'local' or"),
        ({"service_weight": "2"}, "parameter 'service_weight': found '2', expected nothing, or"),
        ({"service_priority": "2"}, "parameter 'service_priority': found '2', expected nothing"),
        *(
            (
                {"placement": "service", "service_weight": text},
                f"parameter 'service_weight': found '{text}', expected a number from 0.001 to 1000",
            )
            for text in ("0", "-1", "nan", "inf", "much", "1001")
        ),
        (
            {"placement": "service", "service_priority": "-1"},
            "parameter 'service_priority': found '-1', expected a whole number of at least 0",
        ),
        (
            {"placement": "service", "workspace_pool_mib": "512"},
            "parameter 'workspace_pool_mib': found '512', expected nothing: with placement",
        ),
    ],
)
def test_what_cannot_be_is_a_fault(parameters, fault):
    assert_fault(encoder_config(parameters), fault)
