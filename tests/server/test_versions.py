"""What the two profiles do differently, row by row, as docs/versions.md lists it.

2.51 is compared with the real server in tests/contract; what is said of newest is from source.
"""

import pytest
from server.support.model_folders import write_model
from tritonclient.grpc import service_pb2 as pb

from reference_server.testing import Code, ServerError, open_repository


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "vector")
    return folder


@pytest.fixture(scope="module")
def newest(models):
    with open_repository(models) as repository:
        yield repository


@pytest.fixture(scope="module")
def proven(models):
    with open_repository(models, options=["--triton-version=2.51"]) as repository:
        yield repository


def post(repository, path, body=b"{}", **headers):
    """Status and body of the reply."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    reply = repository.http("POST", path, body, named)
    return reply.status, reply.body.decode()


# ------------------------------------------------------------------------------- shared memory

DISABLED = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)


@pytest.mark.parametrize("kind", ["system", "cuda"])
@pytest.mark.parametrize("verb", ["region/r/register", "region/r/unregister", "unregister"])
@pytest.mark.parametrize("body", [b"", b"{}", b"]"])
def test_clients_may_not_register_over_http(newest, kind, verb, body):
    said = post(newest, f"/v2/{kind}sharedmemory/{verb}", body)
    assert said == (501, f'{{"error":"{DISABLED}"}}')


@pytest.mark.parametrize("kind", ["System", "Cuda"])
@pytest.mark.parametrize("verb", ["Register", "Unregister"])
def test_clients_may_not_register_over_grpc(newest, kind, verb):
    request = getattr(pb, f"{kind}SharedMemory{verb}Request")(name="r")
    with pytest.raises(ServerError) as caught:
        newest.grpc(f"{kind}SharedMemory{verb}", request)
    assert (caught.value.code, caught.value.message) == (Code.UNSUPPORTED, DISABLED)


def test_what_is_registered_is_told_all_the_same(newest):
    reply = newest.http("GET", "/v2/systemsharedmemory/status")
    assert (reply.status, reply.body) == (200, b"[]")
    assert newest.http("GET", "/v2/systemsharedmemory/region/r/status").status == 404
    assert "system_shared_memory" in newest.http("GET", "/v2").json()["extensions"]


def test_in_2_51_clients_may_register(proven):
    assert post(proven, "/v2/systemsharedmemory/unregister")[0] == 200


# --------------------------------------------------------------------------------- who it is


def test_the_metadata_names_the_release(newest, proven):
    versions = [each.http("GET", "/v2").json()["version"] for each in (newest, proven)]
    assert versions == ["2.73.0", "2.51.0"]
