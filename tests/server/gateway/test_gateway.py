"""The operations of the gateway on loaded models."""

import pytest
from server.support.frontend import gateway, served

from reference_server.core.profiles import NEWEST


@pytest.mark.parametrize(
    ("is_complete", "strict", "ready"),
    [(True, True, True), (False, True, False), (True, False, True), (False, False, True)],
)
def test_ready(is_complete, strict, ready):
    assert gateway(is_complete=is_complete, strict_readiness=strict).ready() == (
        () if ready else None
    )


def test_a_model_is_probed_for_readiness():
    model = served("", "m")
    model.health.add_probe("m_0", question := lambda: True)
    assert gateway(model).model_ready("m") == ()
    assert gateway(model, profile=NEWEST).model_ready("m") == (question,)
    assert gateway(model, profile=NEWEST).ready() == [question]
    model.health.mark_unhealthy("m_0", "gone")
    assert gateway(model).model_ready("m") is None
    assert gateway(model, profile=NEWEST).model_ready("m") is None
    assert gateway(model, profile=NEWEST).ready() is None
