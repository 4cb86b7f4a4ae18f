"""Valid messages with changed bytes: the server survives, and judges them like the real server.

The seed is fixed, so that every run sends the same bytes.
"""

from __future__ import annotations

import grpc
import pytest
from contract.grpc_casebook import call, floats, infer, tensor
from contract.grpc_cases import regions, settings
from contract.mutations import calls
from support.servers import Server

ALONE, BOTH = 400, 200
GOOD = infer("vector", tensor("X", "FP32", [2]), raw=[floats(1, 2)], id="bystander")

# What one server refuses and the other does not, for the reasons in grpc_differences.py; and a
# parameter beside unknown fields, which two builds of Protobuf read differently.
OTHERWISE = (
    "is out of range for",
    "contains one or more invalid dimensions",
    "unexpected shape for input 'X' for model 'batched'. Expected [-1,4], got [4]",
    "invalid value type for '",
)


def test_no_message_harms_the_server_or_a_bystander(probed_reference: Server):
    before = len(probed_reference.log)
    with grpc.insecure_channel(probed_reference.grpc) as channel:
        bystander = call("ModelInfer", GOOD)
        answer = bystander.put(channel)
        assert answer.code == "OK"
        for number, one in enumerate(calls(ALONE, seed=1)):
            outcome = one.put(channel)
            assert outcome.code not in ("DEADLINE_EXCEEDED", "UNKNOWN"), (one, outcome)
            if number % 100 == 0:
                assert bystander.put(channel) == answer
        # For the other tests that use this server.
        cleared = dict.fromkeys(("trace_level", "trace_rate", "trace_count", "log_frequency"), ())
        for one in (regions.unregister(), settings.log(**settings.KEPT), settings.trace(**cleared)):
            assert one.put(channel).code == "OK"
    assert "Traceback" not in probed_reference.log[before:]


@pytest.mark.oracle
def test_both_servers_judge_alike(probed_triton: Server, probed_reference: Server):
    with (
        grpc.insecure_channel(probed_triton.grpc) as triton,
        grpc.insecure_channel(probed_reference.grpc) as reference,
    ):
        for one in calls(BOTH, "ModelInfer", seed=2):
            real, ours = one.put(triton), one.put(reference)
            if any(text in real.details + ours.details for text in OTHERWISE):
                continue
            assert ours.code == real.code, (one, str(real), str(ours))
