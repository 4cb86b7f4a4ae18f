"""Accepted differences between the responses of the reference server and NVIDIA's, with reasons.

Any other difference is a fault. A row removes a part of the response from the comparison of the
cases whose names match. A row without any effect fails the suite.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from contract.casebook import Case, Forget, bodies, connection, everything
from contract.wire import Exchange


@dataclass(frozen=True)
class Difference:
    """An accepted difference: its cases, its reason, and the parts that are not compared."""

    cases: str
    reason: str
    forget: Forget

    def concerns(self, case: Case) -> bool:
        """Return whether this difference applies to a case."""
        return fnmatchcase(case.name, self.cases)


SMUGGLING = (
    "a body with two framings is how a request is smuggled past a proxy: it is refused with 400, "
    "and the connection closed"
)
UNREAD = (
    "a header that the next proxy may read otherwise is refused with 400; the real server passes "
    "over it, or closes without a word"
)
OBEYED = "a client that asks to close is obeyed, in any letter case and among other words"
WRAPPED = (
    "an integer that does not fit is refused; the real server sends other numbers to the model"
)
DAMAGED = (
    "a damaged compressed body is refused; the real server serves what it decoded of it, whatever "
    "the checksum says"
)

DIFFERENCES = [
    Difference("connection: closed when asked in capitals", OBEYED, connection),
    Difference("framing: close among other words", OBEYED, connection),
    Difference("framing: two lengths", SMUGGLING, everything),
    Difference("framing: the same length twice", SMUGGLING, everything),
    Difference("framing: chunks and a longer length", SMUGGLING, everything),
    Difference("framing: chunks and length 0", SMUGGLING, everything),
    Difference("framing: chunks announced twice", SMUGGLING, everything),
    Difference("framing: two lengths of an upgrade", SMUGGLING, everything),
    Difference("framing: a folded l*", UNREAD, everything),
    Difference("framing: a space before a colon", UNREAD, everything),
    Difference("framing: coding *", SMUGGLING, everything),
    Difference("framing: a zero in a header", "RFC 9110 forbids it: refused with 400", everything),
    Difference(
        "framing: chunk with an extension",
        "chunk extensions are good HTTP, to be ignored; the real server closes",
        everything,
    ),
    Difference(
        "framing: a URL of 9000 letters",
        "the real server's limit is about 8000 letters, ours is larger",
        everything,
    ),
    Difference("framing: HTTP/1.2", "there is no such version; the parser refuses it", everything),
    Difference("framing: HTTP/2.0", "as HTTP/1.2; here the reply says that it closes", connection),
    Difference("compression: a wrong checksum", DAMAGED, everything),
    Difference(
        "number: FP64 digits read",
        "the real server misreads one in eight numbers of 17 digits by the least of its bits",
        bodies(lambda body: body[: body.index(b"]}") + 2]),
    ),
    Difference(
        "unknown model: a name of other letters",
        "a URL is ASCII: at another byte the parser closes, the real server finds no such page",
        everything,
    ),
    *(
        Difference(f"number: {datatype} wraps", WRAPPED, everything)
        for datatype in ("INT8", "INT16", "INT32", "UINT8", "UINT16", "UINT32")
    ),
    Difference(
        "ensemble: a sequence id of 64 bits",
        "an ensemble says the number that it was sent; from the real server's, 2^64 is taken",
        bodies(lambda body: re.sub(rb'"sequence_id":-?\d+', b"", body)),
    ),
    Difference(
        "number: a large exponent of zero",
        "zero is zero; the real server takes 0e999 for a number too big",
        everything,
    ),
    Difference('generate type: * types {"UINT8":256}', WRAPPED, everything),
    Difference('generate type: * types {"INT8":200}', WRAPPED, everything),
]


def comparable(case: Case, exchange: Exchange, differences: Iterable[Difference] = ()) -> Exchange:
    """Return an exchange without the parts that are not compared for this case."""
    result = case.unstable(exchange)
    for difference in differences:
        if difference.concerns(case):
            result = difference.forget(result)
    return result


def check_alike(case: Case, real: Exchange, ours: Exchange) -> None:
    """Compare two answers, first as text, whose differences are easier to read."""
    real, ours = (comparable(case, answer, DIFFERENCES) for answer in (real, ours))
    assert str(ours) == str(real)
    assert ours == real
