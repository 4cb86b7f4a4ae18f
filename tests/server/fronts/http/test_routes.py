"""The URL grammar: every path, and every path that is none."""

import pytest

from reference_server.core.errors import Code, ServerError
from reference_server.core.request import LATEST
from reference_server.fronts.http import routes
from reference_server.fronts.http.routes import Operation, Route

PATHS = {
    "/v2": Route(Operation.SERVER_METADATA),
    "/v2/health/live": Route(Operation.LIVE),
    "/v2/health/ready": Route(Operation.READY),
    "/v2/models/stats": Route(Operation.ALL_STATISTICS),
    "/v2/models/m": Route(Operation.MODEL_METADATA, "m"),
    "/v2/models/m/infer": Route(Operation.INFER, "m"),
    "/v2/models/m/ready": Route(Operation.MODEL_READY, "m"),
    "/v2/models/m/config": Route(Operation.MODEL_CONFIG, "m"),
    "/v2/models/m/stats": Route(Operation.MODEL_STATISTICS, "m"),
    "/v2/models/m/versions/12": Route(Operation.MODEL_METADATA, "m", "12"),
    "/v2/models/m/versions/12/infer": Route(Operation.INFER, "m", "12"),
    "/v2/models/m/versions/12/ready": Route(Operation.MODEL_READY, "m", "12"),
    "/v2/models/m/versions/12/config": Route(Operation.MODEL_CONFIG, "m", "12"),
    "/v2/models/m/versions/12/stats": Route(Operation.MODEL_STATISTICS, "m", "12"),
    "/v2/models/stats/infer": Route(Operation.INFER, "stats"),
    "/v2/models/infer": Route(Operation.MODEL_METADATA, "infer"),
    "/v2/models/b%61t": Route(Operation.MODEL_METADATA, "b%61t"),
    "/v2/models/a b;c": Route(Operation.MODEL_METADATA, "a b;c"),
    "/v2?x=1": Route(Operation.SERVER_METADATA),
    "/v2/models/m?a=/infer": Route(Operation.MODEL_METADATA, "m"),
}


@pytest.mark.parametrize(("path", "route"), PATHS.items())
def test_a_path_names_an_operation(path, route):
    assert routes.match(path.encode()) == route


@pytest.mark.parametrize(
    "path",
    [
        *("/", "//", "", "/v1", "/v2/", "/V2", "//v2", "/v2//health/live", "v2"),
        *("/v2/health", "/v2/health/", "/v2/health/live/", "/v2/health/alive"),
        *("/v2/models", "/v2/models/", "/v2/models/m/", "/v2/models/m/nothing"),
        *("/v2/models/m/infer/", "/v2/models/m/versions", "/v2/models/m/versions/"),
        *("/v2/models/m/versions/a", "/v2/models/m/versions/-1", "/v2/models/m/versions/1.0"),
        *("/v2/models/m/versions/1/", "/v2/models/m/versions/1/infer/", "/v2/models/a/b/c"),
        *("/v2/models/stats/", "/v2/models/m/versions/1/trace/setting", "/metrics", "*"),
        "/v2/models/m/versions/٣",
    ],
)
def test_other_paths_name_nothing(path):
    assert routes.match(path.encode()) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", LATEST),
        ("0", 0),
        ("1", 1),
        ("007", 7),
        ("0" * 30 + "7", 7),
        (str(2**63 - 1), 2**63 - 1),
    ],
)
def test_a_version_is_a_number(text, number):
    assert Route(Operation.INFER, "m", text).version() == number


@pytest.mark.parametrize("text", [str(2**63), "9" * 30, "9" * 5000], ids=["2**63", "30", "5000"])
def test_a_version_may_be_too_large(text):
    with pytest.raises(ServerError) as caught:
        Route(Operation.INFER, "m", text).version()
    assert caught.value.code is Code.INVALID_ARG
    assert caught.value.message == (
        f"failed to get model version from specified version string '{text}' (details: stol), "
        "version should be an integral value > 0"
    )


@pytest.mark.parametrize("operation", Operation)
def test_only_inference_is_posted(operation):
    assert operation.method == ("POST" if operation is Operation.INFER else "GET")
