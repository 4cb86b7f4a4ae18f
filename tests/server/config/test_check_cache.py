"""Models that cannot use the response cache."""

import pytest
from server.support.configs import proto

from reference_server.config.check import check_response_cache
from reference_server.core.errors import ServerError

CACHED = 'name: "m" response_cache { enable: true } '


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sequence_batching { }", "sequence batching scheduler"),
        ("model_transaction_policy { decoupled: true }", "'decoupled' transaction policy"),
    ],
)
def test_models_without_cacheable_responses_are_refused(text, reason):
    with pytest.raises(ServerError) as raised:
        check_response_cache(proto(CACHED + text))
    assert raised.value.described() == (
        f"Invalid argument: Response Cache does not currently support model m with {reason}. "
        "Please disable the response cache."
    )


@pytest.mark.parametrize(
    "text",
    [
        CACHED,
        CACHED + "dynamic_batching { }",
        'name: "m" response_cache { enable: false } sequence_batching { }',
        'name: "m" sequence_batching { } model_transaction_policy { decoupled: true }',
    ],
)
def test_other_models_are_accepted(text):
    check_response_cache(proto(text))
