"""The classes of Triton's security bulletins: attacks are refused, other requests are served.

docs/versions.md has them as a table. Each attack runs beside another client's requests.
"""

import base64
import io
import json
import tarfile
import zlib

import pytest
from server.support.model_folders import VECTOR, write_model
from server.support.versions import (
    INFER,
    MUCH_DEEPER,
    bystander_answers_during,
    named,
    tensor_message,
    vector,
)

from reference_server.testing import ServerError, open_repository


def http(path, body=b"", **headers):
    """Return an attack by one HTTP request, which returns status and text."""

    def attack(repository):
        reply = repository.http("POST", path, body, named(headers))
        return reply.status, reply.body.decode()

    return attack


def over_grpc(message):
    def attack(repository):
        with pytest.raises(ServerError) as caught:
            repository.grpc("ModelInfer", message)
        return 400, caught.value.message

    return attack


def outputs(count):
    """Return a message that requests very many outputs, the last one twice."""
    message = tensor_message("vector", "X", "FP32", 1)
    for index in (*range(count), count - 1):
        message.outputs.add(name=f"Y{index}")
    return message


def load(**parameters):
    body = json.dumps(
        {"parameters": {key.replace("__", ":"): text for key, text in parameters.items()}}
    )
    return http("/v2/repository/models/vector/load", body.encode())


def archive(member):
    """Return a tar file as base64."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        tar.addfile(tarfile.TarInfo(member), io.BytesIO())
    return base64.b64encode(content.getvalue()).decode()


#: The configuration of a model with an environment of its own.
PACKED = json.dumps(
    {
        "backend": "python",
        "parameters": {
            "EXECUTION_ENV_PATH": {"string_value": "$$TRITON_MODEL_DIRECTORY/env.tar.gz"}
        },
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1]}],
        "output": [{"name": "Y", "data_type": "TYPE_FP32", "dims": [-1]}],
    }
)
CONFIG = json.dumps({"backend": "python", "max_batch_size": 0})
FILE = base64.b64encode(b"stolen").decode()
#: The start of a zlib stream of 200 MiB of zeros: blocks after a full flush can be repeated.
_ZEROS = zlib.compressobj()
_MEGABYTE, _NEXT = (
    _ZEROS.compress(bytes(1 << 20)) + _ZEROS.flush(zlib.Z_FULL_FLUSH) for _ in range(2)
)
BOMB = _MEGABYTE + 199 * _NEXT
ATTACKS = {
    "a file of a load outside of its folder": (
        load(config=CONFIG, **{"file__../../x/1/model.py": FILE}),
        500,
        "failed to poll from model repository",
    ),
    "an absolute file of a load": (
        load(config=CONFIG, **{"file__/../etc/x": FILE}),
        500,
        "failed to poll from model repository",
    ),
    "an archive that leaves its folder": (
        load(
            config=PACKED,
            **{"file__1/model.py": FILE, "file__env.tar.gz": archive("../../../stolen")},
        ),
        400,
        "entry '../../../stolen': found path '../../../stolen'; expected a path inside the archive",
    ),
    "a bomb of zeros": (
        http(INFER, BOMB, Content_Encoding="deflate"),
        400,
        "Decompressed data size exceeds",
    ),
    "deep nesting in data": (
        http(INFER, json.dumps(vector(1, [1])).replace("[1]}", MUCH_DEEPER + "}").encode()),
        400,
        "Unable to parse 'data': JSON nesting depth exceeds maximum allowed limit (100)",
    ),
    "a file of base64 alone": (
        http("/v2/repository/models/vector/load", b'{"parameters":{"file:x":"' + b"A" * (65 << 20)),
        400,
        "request JSON size of",
    ),
    "very many outputs": (over_grpc(outputs(50_000)), 400, "output 'Y49999' already exists"),
}


@pytest.mark.brute_force
@pytest.mark.parametrize(("attack", "status", "expected"), ATTACKS.values(), ids=ATTACKS)
def test_an_attack_is_refused_and_others_are_served(
    newest, attack, status, expected, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # of archives, instead of the user's cache
    (got, text), _ = bystander_answers_during(newest, attack)
    assert (got, expected in text) == (status, True)


@pytest.mark.parametrize(
    "target",
    [
        "/v2/health/live",
        "/v2/health/live?x=1",
        "/v2/health/live#x",
        "http://host/v2/health/live",
        "/v2/health/live/",
        "//v2/health/live",
        "/v2/./health/live",
        "/v2/%68ealth/live",
        "/V2/health/live",
        "/v2/models/x/../../health/live",
        "/v2/health/live;x",
    ],
)
def test_no_form_of_a_url_gets_past_a_restriction(guarded, target):
    reply = guarded.http_raw(f"GET {target} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    assert reply.split()[1] in (b"403", b"404", b"400")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A server that reports its health only to clients with a secret header."""
    folder = tmp_path_factory.mktemp("guarded")
    write_model(folder, "vector", VECTOR)
    with open_repository(folder, options=["--http-restricted-api=health:word=x"]) as repository:
        yield repository
