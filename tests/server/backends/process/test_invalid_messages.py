"""Tests of processes that send invalid or incomplete messages."""

import struct

import pytest
from server.backends import kit
from server.backends.process.mortal import HERE, MORTAL, UNHEALTHY, Start, asks, said

from reference_server.backends.process_host import process

pytestmark = pytest.mark.brute_force


def framed(text: str, data: int) -> str:
    """Return a message with `data` bytes of tensors; -1 means no parcel."""
    return (struct.pack("<Ii", len(text), data) + text.encode() + bytes(max(0, data))).hex()


def event(text: str) -> str:
    return f"says {framed(text, -1)}"


def answer(text: str, data: int = 0) -> str:
    """Return a job's result, with no earlier events and no freed blocks."""
    return f"answers {framed(f'[0,[],{text[1:]}', data)}"


def tensor(kind: str, shape: list[int], offset: int, size: int, name: str = '"m"') -> str:
    """Return a response to one request with a tensor of this type, shape, offset and size."""
    packed = f'["T","{kind}",{shape},{offset},{size}]'
    return answer(f'["executed",[[[{name},1,"",[{packed}],[],null,true,false]],0,0,[],false]]', 16)


BLOCK = '["T","UINT8",[8192],0,8192]'
JUNK = {
    "endless": f"says {'ff' * 8}",
    "an endless answer": f"answers {'ff' * 8}",
    "no JSON": event("no JSON"),
    "no kind": event('["unheard of"]'),
    "no block": event('["free",[12345]]'),
    "no response": event('["response",0,[]]'),
    "no log line": event('["log",7]'),
    "no answer": answer('["executed",7]'),
    "an answer without a parcel": answer('["executed",[[],0,0,[],false]]', -1),
    "an answer's block": "answers " + framed('[0,[12345],"done",7]', -1),
    "an answer of another kind": answer('["unheard of"]'),
    "no count": "answers " + framed('["many",[],"done",7]', -1),
    "no times": answer('["executed",[[null],"soon",0,[],false]]'),
    "no name": tensor("BYTES", [1], 0, 16, name="7"),
    "no code": answer('["failed","NO_CODE",""]', -1),
    "no outcome": answer('["done"]', -1),
    "answer to another job": answer('["done",7]', -1),
    "too few answers": answer('["executed",[[],0,0,[],false]]'),
    "too many given back": answer('["executed",[[null],0,0,[1],false]]'),
    "no size": tensor("FP32", [4], 0, -1),
    "another size": tensor("FP32", [1 << 40], 0, 16),
    "no shape": tensor("BYTES", [-1], 0, 16),
    "before the message": tensor("BYTES", [1], -8, 16),
    "behind the message": tensor("BYTES", [1], 8, 16),
    "before the memory": tensor("BYTES", [1], -64, 8192),
    "behind the memory": tensor("BYTES", [1], 1 << 60, 8192),
    "the same block twice": answer(
        f'["executed",[[["m",1,"",[{BLOCK},{BLOCK}],[],null,true,false]],0,0,[],false]]'
    ),
    "no type": tensor("ODD", [1], 0, 16),
}


def test_a_process_that_sends_an_invalid_message_is_killed(start: Start, health):
    instance, other = start(MORTAL), start(MORTAL, name="other")
    for what, junk in JUNK.items():
        error = kit.execution_error(instance, asks(junk))
        assert error == UNHEALTHY, what
        assert health.next().startswith(HERE), what
        assert health.next() == "", what
    assert said(instance, "again") == [b"again"]
    assert said(other, "unharmed") == [b"unharmed"]


@pytest.mark.parametrize("how", ["says", "answers"])
def test_a_process_that_sends_half_a_message_is_killed(start, health, monkeypatch, how):
    monkeypatch.setattr(process, "_STALLED_S", 0.1)
    instance = start(MORTAL)
    half = "05000000ffffffff" + b"[".hex()
    assert kit.execution_error(instance, asks(f"{how} {half}")) == UNHEALTHY
    assert health.next() == HERE + "exited with code 1"
    assert health.next() == ""
    assert said(instance, "again") == [b"again"]
