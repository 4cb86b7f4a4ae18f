"""The metadata, and shared memory of clients, in both profiles: rows of docs/versions.md.

tests/contract compares 2.51 with the real server; the rows of newest are from Triton's sources.
"""

import json

import pytest
from server.support.regions import shared_object
from server.support.versions import INFER, post, vector
from tritonclient.grpc import service_pb2 as pb

from reference_server.core.metadata import SystemRegion
from reference_server.core.profiles import NEWEST
from reference_server.gateway.shared_memory import SharedMemory
from reference_server.testing import Code, ServerError


def test_the_metadata_names_the_release(newest, proven):
    versions = [each.http("GET", "/v2").json()["version"] for each in (newest, proven)]
    assert versions == ["2.75.0", "2.51.0"]


DISABLED = (
    "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
)


@pytest.mark.parametrize("kind", ["system", "cuda"])
@pytest.mark.parametrize("verb", ["region/r/register", "region/r/unregister", "unregister"])
def test_clients_may_not_register_over_http(newest, kind, verb):
    said = post(newest, f"/v2/{kind}sharedmemory/{verb}", b"]")
    assert said == (501, f'{{"error":"{DISABLED}"}}')


@pytest.mark.parametrize("kind", ["System", "Cuda"])
@pytest.mark.parametrize("verb", ["Register", "Unregister"])
def test_clients_may_not_register_over_grpc(newest, kind, verb):
    request = getattr(pb, f"{kind}SharedMemory{verb}Request")(name="r")
    with pytest.raises(ServerError) as caught:
        newest.grpc(f"{kind}SharedMemory{verb}", request)
    assert (caught.value.code, caught.value.message) == (Code.UNSUPPORTED, DISABLED)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("///", " - invalid shm key '///'"),
        (
            "//triton_python_backend_shm_region_7",
            " with key '//triton_python_backend_shm_region_7' as the key contains the reserved "
            "prefix 'triton_python_backend_shm_region_'",
        ),
    ],
)
def test_keys_of_slashes_and_of_a_server_are_refused(open_to_clients, key, reason):
    body = json.dumps({"key": key, "byte_size": 8}).encode()
    reply = open_to_clients.http("POST", "/v2/systemsharedmemory/region/r/register", body)
    expected = f"cannot register shared memory region 'r'{reason}"
    assert (reply.status, reply.json()["error"]) == (400, expected)


IN_REGION = "Invalid offset + byte size for shared memory region: 'part'"


@pytest.mark.parametrize(
    ("offset", "size", "status", "expected"),
    [
        (0, 8, 200, ""),
        (0, 0, 400, "input byte size mismatch for input 'X' for model 'vector'. Expected 8, got 0"),
        (8, 0, 400, "input byte size mismatch for input 'X' for model 'vector'. Expected 8, got 0"),
        (64, 0, 400, "Invalid offset for shared memory region: 'part'"),
        (60, 8, 400, IN_REGION),
        (
            1,
            2**64 - 1,
            400,
            "Integer overflow detected: byte_size (18446744073709551615) + offset (1) exceeds "
            "maximum value (18446744073709551615) for region 'part'",
        ),
        (0, 2**64 - 1, 400, IN_REGION),
    ],
)
def test_a_part_must_be_within_its_region(open_to_clients, region, offset, size, status, expected):
    where = {
        "shared_memory_region": "part",
        "shared_memory_offset": offset,
        "shared_memory_byte_size": size,
    }
    reply = open_to_clients.http("POST", INFER, json.dumps(vector(2, parameters=where)).encode())
    assert reply.status == status
    assert expected in reply.body.decode()


@pytest.fixture
def region(open_to_clients):
    """Register a region `part` of 64 bytes."""
    with shared_object(bytes(64)) as key:
        body = json.dumps({"key": key, "byte_size": 64}).encode()
        at = "/v2/systemsharedmemory/region/part"
        assert open_to_clients.http("POST", f"{at}/register", body).status == 200
        yield
        assert open_to_clients.http("POST", f"{at}/unregister").status == 200


def test_a_region_in_use_is_released_with_its_last_request():
    memory = SharedMemory(profile=NEWEST)
    with shared_object(bytes(4096)) as key:
        memory.register_system("r", key, 64)
        first, second = memory.lease(), memory.lease()
        first.read("r", 0, 8)
        memory.unregister(SystemRegion, "r")
        memory.unregister(SystemRegion)
        second.read("r", 0, 8)  # still usable by this request
        with pytest.raises(ServerError, match="already in manager"):
            memory.register_system("r", key, 64)
        first.release()
        assert memory.regions(SystemRegion)
        second.release()
        assert not memory.regions(SystemRegion)
        memory.register_system("r", key, 64)
        memory.close()
