"""URL paths: valid ones and their operations, and invalid ones."""

import pytest
from server.support.frontend import Frontend
from server.support.http import get, post

from reference_server.core.request import LATEST
from reference_server.frontends.http import routes
from reference_server.frontends.http.routes import Operation, Route

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
    "/v2/models/m/versions/12": Route(Operation.MODEL_METADATA, "m", 12),
    "/v2/models/m/versions/12/infer": Route(Operation.INFER, "m", 12),
    "/v2/models/m/versions/12/ready": Route(Operation.MODEL_READY, "m", 12),
    "/v2/models/m/versions/12/config": Route(Operation.MODEL_CONFIG, "m", 12),
    "/v2/models/m/versions/12/stats": Route(Operation.MODEL_STATISTICS, "m", 12),
    "/v2/models/stats/infer": Route(Operation.INFER, "stats"),
    "/v2/models/infer": Route(Operation.MODEL_METADATA, "infer"),
    "/v2/models/b%61t": Route(Operation.MODEL_METADATA, "b%61t"),
    "/v2/models/a b;c": Route(Operation.MODEL_METADATA, "a b;c"),
    **{
        f"/v2/{kind}sharedmemory{region}/{verb}": Route(
            Operation[f"{kind}_region_{verb}".upper()], name=name
        )
        for kind in ("system", "cuda")
        for verb in ("status", "register", "unregister")
        for region, name in (("", ""), ("/region/r", "r"), ("/region/a%2F b", "a%2F b"))
    },
    "/v2/models/m/generate": Route(Operation.GENERATE, "m"),
    "/v2/models/m/versions/3/generate_stream": Route(Operation.GENERATE_STREAM, "m", 3),
    "/v2/logging": Route(Operation.LOG_SETTINGS),
    "/v2/trace/setting": Route(Operation.TRACE_SETTINGS),
    "/v2/models/m/trace/setting": Route(Operation.TRACE_SETTINGS, "m"),
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
        *("/v2/systemsharedmemory", "/v2/cudasharedmemory/region/r", "/v2/sharedmemory/status"),
        *("/v2/systemsharedmemory/region//status", "/v2/systemsharedmemory/region/a/b/status"),
    ],
)
def test_other_paths_have_no_operation(path):
    assert routes.match(path.encode()) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", LATEST),
        ("/versions/0", 0),
        ("/versions/1", 1),
        ("/versions/007", 7),
        ("/versions/" + "0" * 30 + "7", 7),
        (f"/versions/{2**63 - 1}", 2**63 - 1),
    ],
)
def test_a_version_is_a_number(text, number):
    assert routes.match(f"/v2/models/m{text}/infer".encode()) == Route(Operation.INFER, "m", number)


@pytest.mark.parametrize("text", [str(2**63), "9" * 30, "9" * 5000], ids=["2**63", "30", "5000"])
def test_a_version_may_be_too_large(text):
    assert routes.match(f"/v2/models/m/versions/{text}/infer".encode()).fault == (
        f"failed to get model version from specified version string '{text}' (details: stol), "
        "version should be an integral value > 0"
    )


@pytest.mark.parametrize("verb", ["", "/config", "/stats", "/generate", "/ready", "/infer"])
def test_a_version_that_is_too_large_is_an_invalid_argument(verb):
    path = f"/v2/models/m/versions/{2**63}{verb}"
    reply = Frontend().ask(post(path, b"") if verb in ("/infer", "/generate") else get(path))
    assert reply.status == 400
    assert b"(details: stol)" in reply.body
    assert (reply.header("Content-Type") == "text/plain") == (verb in ("/ready", "/infer"))


TOLD = {
    *(Operation.LIVE, Operation.READY, Operation.SERVER_METADATA),
    *(Operation.MODEL_METADATA, Operation.MODEL_READY, Operation.MODEL_CONFIG),
    *(Operation.MODEL_STATISTICS, Operation.ALL_STATISTICS),
    *(Operation.SYSTEM_REGION_STATUS, Operation.CUDA_REGION_STATUS),
}


@pytest.mark.parametrize("operation", Operation)
def test_the_methods_of_operations(operation):
    assert operation.method == ("GET" if operation in TOLD else "POST")


BOTH = {Operation.LOG_SETTINGS, Operation.TRACE_SETTINGS}


@pytest.mark.parametrize("operation", Operation)
def test_other_methods_are_not_allowed(operation):
    allowed = {method for method in ("GET", "POST", "PUT", "HEAD") if method in operation.methods}
    assert allowed == ({"GET", "POST"} if operation in BOTH else {operation.method})
