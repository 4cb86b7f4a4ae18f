"""What a start imports, and what it leaves to those who ask for it."""

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
    """What `then` prints, a word each, in a process that has imported the server."""
    program = dedent(START) + dedent(then)
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()[-1].split()


@pytest.mark.brute_force
def test_a_start_imports_no_client_and_what_only_a_collector_needs():
    assert said_after_a_start("""
        left_out = {"grpc", "http.client", "tritonclient.grpc", "tritonclient.utils"}
        print("found:", *left_out & sys.modules.keys())
    """) == ["found:"]


@pytest.mark.brute_force
def test_whoever_imports_the_client_later_gets_it_with_the_messages_of_the_server():
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
