"""The modules that a start imports, and those that are imported later."""

import subprocess
import sys
from textwrap import dedent

import pytest

START = """
    import contextlib, sys
    from reference_server.__main__ import main

    sys.argv = ["reference_server", "--version"]
    with contextlib.suppress(SystemExit):
        main()
"""


def said_after_a_start(then: str) -> list[str]:
    """Return the words that `then` prints in a process that has imported the server."""
    program = dedent(START) + dedent(then)
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()[-1].split()


@pytest.mark.brute_force
def test_a_start_imports_neither_the_client_nor_the_span_exporter():
    assert said_after_a_start("""
        left_out = {"grpc", "http.client", "tritonclient.grpc", "tritonclient.utils"}
        print("found:", *left_out & sys.modules.keys())
    """) == ["found:"]


@pytest.mark.brute_force
def test_the_client_can_be_imported_later_with_the_servers_messages():
    assert said_after_a_start("""
        from reference_server.codecs import infer_proto
        from reference_server.config import pbtxt
        import tritonclient.grpc as client
        print(
            client.InferenceServerClient.__name__,
            client.service_pb2.ModelInferRequest is infer_proto.ModelInferRequest,
            client.model_config_pb2.ModelConfig is pbtxt.ConfigProto,
        )
    """) == ["InferenceServerClient", "True", "True"]
