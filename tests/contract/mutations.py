"""Valid requests of the tables with changed bytes, over HTTP and gRPC."""

from __future__ import annotations

import random
from collections.abc import Iterator

from contract.cases import CASES
from contract.grpc_casebook import GrpcCall, call
from contract.grpc_cases import CASES as GRPC_CASES
from support.mutations import mutated

# Longer requests are excluded: they are mostly data, in which any bytes are valid.
LONGEST = 2_000
# Excluded: models whose later answers a mutation may change, models that may never answer or crash
# because of a shape, and settings of the whole server.
UNTOUCHED = (b"held", b"faults", b"faulty_chain", b"counted", b"unasked", b"decoupled")
GRPC_UNTOUCHED = (b"matrix", b"held", b"faults", b"faulty_chain", b"labelled", b"counted")
ELSEWHERE = (b"/v2/logging", b"trace/setting", b"sharedmemory", b"/v2/repository")
FRAMING = b"content-length"
# Excluded: forms of requests that may have no end, or no answer, after a change of the body.
OTHER_FRAMING = (b"transfer-encoding:", b"expect:")


def requests(*, within: bytes = b"") -> list[bytes]:
    """Return the requests of valid cases that contain `within`."""
    return [
        case.request
        for case in CASES
        if isinstance(case.request, bytes)
        and case.status == 200
        and case.replies == 1
        and len(case.request) < LONGEST
        and within in case.request
        and FRAMING in case.request.lower()
        and not any(word in case.request.lower() for word in OTHER_FRAMING)
        and not any(word in case.request for word in (*UNTOUCHED, *ELSEWHERE))
    ]


def reframed(request: bytes, dice: random.Random) -> bytes:
    """Change the body, sometimes the target, and set the correct length of the body."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    method, target, version = first.split(b" ")
    if dice.randrange(8) == 0:
        # A space, a non-ASCII character, or another first character would end the connection.
        target = b"/" + bytes(byte for byte in mutated(target[1:], dice) if 0x20 < byte < 0x7F)
    else:
        body = mutated(body, dice)
    kept = [line for line in lines if not line.lower().startswith(FRAMING)]
    return b"\r\n".join(
        [b" ".join((method, target, version)), *kept, b"Content-Length: %d" % len(body), b"", body]
    )


def good_calls(*methods: str) -> list[GrpcCall]:
    """Return the last calls of valid cases, of these methods or of all."""
    return [
        case.calls[-1]
        for case in GRPC_CASES
        if case.code == "OK"
        and (not methods or case.calls[-1].method in methods)
        and 0 < sum(map(len, case.calls[-1].requests)) < LONGEST
        and not any(name in b"".join(case.calls[-1].requests) for name in GRPC_UNTOUCHED)
    ]


def calls(count: int, *methods: str, seed: int) -> Iterator[GrpcCall]:
    """Yield mutated calls of valid cases, of these methods or of all."""
    dice, pool = random.Random(seed), good_calls(*methods)
    for _ in range(count):
        good = dice.choice(pool)
        yield call(good.method, *(mutated(request, dice) for request in good.requests))
