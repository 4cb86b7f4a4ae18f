"""URL paths: valid ones and their operations, and invalid ones."""

import pytest

from reference_server.frontends.http import routes
from reference_server.frontends.http.routes import Operation, Route

PATHS = {
    "/v2": Route(Operation.SERVER_METADATA),
    "/v2/health/live": Route(Operation.LIVE),
    "/v2/health/ready": Route(Operation.READY),
    "/v2/openapi.json": Route(Operation.OPENAPI),
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


READ_ONLY = {
    *(Operation.LIVE, Operation.READY, Operation.SERVER_METADATA, Operation.OPENAPI),
    *(Operation.MODEL_METADATA, Operation.MODEL_READY, Operation.MODEL_CONFIG),
    *(Operation.MODEL_STATISTICS, Operation.ALL_STATISTICS),
    *(Operation.SYSTEM_REGION_STATUS, Operation.CUDA_REGION_STATUS),
}


@pytest.mark.parametrize("operation", Operation)
def test_the_methods_of_operations(operation):
    assert operation.method == ("GET" if operation in READ_ONLY else "POST")


BOTH = {Operation.LOG_SETTINGS, Operation.TRACE_SETTINGS}


@pytest.mark.parametrize("operation", Operation)
def test_other_methods_are_not_allowed(operation):
    allowed = {method for method in ("GET", "POST", "PUT", "HEAD") if method in operation.methods}
    assert allowed == ({"GET", "POST"} if operation in BOTH else {operation.method})
