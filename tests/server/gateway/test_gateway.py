"""The operations of the gateway on loaded models."""

import pytest
from server.support.frontend import gateway, served
from server.support.model_folders import VECTOR

from reference_server.core.errors import Code, ServerError
from reference_server.core.profiles import NEWEST


@pytest.fixture
def three():
    """A gateway to model `m` in versions 1 and 3, and model `a`."""
    return gateway(served(VECTOR, "m", 3), served(VECTOR, "m", 1), served(VECTOR, "a", 2))


def test_live(three):
    assert three.live()


@pytest.mark.parametrize(
    ("is_complete", "strict", "ready"),
    [(True, True, True), (False, True, False), (True, False, True), (False, False, True)],
)
def test_ready(is_complete, strict, ready):
    assert gateway(is_complete=is_complete, strict_readiness=strict).ready() == (
        () if ready else None
    )


def test_server_metadata_has_the_name_of_the_options():
    metadata = gateway(server_id="mine").server_metadata()
    assert (metadata.name, metadata.version) == ("mine", "2.51.0")


@pytest.mark.parametrize(
    ("name", "version", "ready"),
    [
        ("m", -1, True),
        ("m", 1, True),
        ("m", 2, False),
        ("unknown", -1, False),
        ("unknown", 1, False),
    ],
)
def test_model_ready(three, name, version, ready):
    assert three.model_ready(name, version) == (() if ready else None)


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


@pytest.mark.parametrize(("version", "versions"), [(-1, (1, 3)), (1, (1,)), (3, (3,))])
def test_model_metadata_lists_all_versions_or_the_requested_one(three, version, versions):
    metadata = three.model_metadata("m", version)
    assert (metadata.signature.name, metadata.versions, metadata.platform) == (
        "m",
        versions,
        "python",
    )


def test_model_config_is_the_json(three):
    assert three.model_config("a").startswith('{"name":"a",')


@pytest.mark.parametrize("operation", ["find", "model_metadata", "model_config"])
def test_unknown_models_are_not_found(three, operation):
    with pytest.raises(ServerError) as caught:
        getattr(three, operation)("unknown")
    assert caught.value.code is Code.NOT_FOUND


@pytest.mark.parametrize(
    ("asked", "listed"),
    [
        ((), [("a", 2), ("m", 1), ("m", 3)]),
        (("m",), [("m", 1), ("m", 3)]),
        (("m", 3), [("m", 3)]),
    ],
)
def test_statistics(three, asked, listed):
    assert [(entry.name, entry.version) for entry in three.statistics(*asked)] == listed


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (("unknown",), "requested model 'unknown' is not available"),
        (("unknown", 1), "requested model 'unknown' is not available"),
        (("m", 2), "requested model version is not available for model 'm'"),
    ],
)
def test_statistics_of_unknown_models_are_refused(three, asked, text):
    with pytest.raises(ServerError) as caught:
        three.statistics(*asked)
    assert (caught.value.code, caught.value.message) == (Code.INVALID_ARG, text)
