"""Where the reference server may answer otherwise than NVIDIA's, and why.

Anything else that differs is a fault. A row here takes the named thing out of the comparison for
the cases whose names match; a row that no longer makes a difference fails the suite.
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
    """A difference that stays: for which cases, why, and what is not compared."""

    cases: str
    reason: str
    forget: Forget

    def concerns(self, case: Case) -> bool:
        """Tell whether a case is one of those named."""
        return fnmatchcase(case.name, self.cases)


SMUGGLING = (
    "a body with two framings is how a request is smuggled past a proxy: the connection is closed"
)
OBEYED = "a client that asks to close is obeyed, in any letter case and among other words"
WRAPPED = (
    "an integer that does not fit is refused; the real server sends other numbers to the model"
)
DAMAGED = (
    "a damaged compressed body is refused; the real server serves what it decoded of it, whatever "
    "the checksum says, or takes it for an empty one"
)
LATER = "the reference server refuses what it does not serve yet: "

DIFFERENCES = [
    Difference(
        "server: metadata",
        "the reference server names the extensions that it serves, which are fewer for now",
        bodies(lambda body: re.sub(rb'"extensions":\[[^]]*\]', b'"extensions":[]', body)),
    ),
    Difference("connection: closed when asked in capitals", OBEYED, connection),
    Difference("framing: close among other words", OBEYED, connection),
    Difference("framing: two lengths", SMUGGLING, everything),
    Difference("framing: the same length twice", SMUGGLING, everything),
    Difference("framing: a length and chunks", SMUGGLING, everything),
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
    Difference("compression: garbage", DAMAGED, everything),
    Difference("compression: raw deflate", DAMAGED, everything),
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
        "number: a large exponent of zero",
        "zero is zero; the real server takes 0e999 for a number too big",
        everything,
    ),
    *(
        Difference(f"execute: {what}", f"{LATER}response senders", everything)
        for what in (
            "sends and returns none",
            "sends and returns a list of none",
            "sends the flag afterwards",
            "sends an error",
        )
    ),
    Difference("model: * of decoupled", f"{LATER}decoupled models", everything),
    Difference("model: ready: decoupled", f"{LATER}decoupled models", everything),
    Difference("refused: decoupled model", f"{LATER}decoupled models", everything),
    Difference("model: * of queueing", f"{LATER}priorities and queue policies", everything),
    Difference("model: ready: queueing", f"{LATER}priorities and queue policies", everything),
    Difference("model: * of warmed", f"{LATER}warm-up", everything),
    Difference("model: ready: warmed", f"{LATER}warm-up", everything),
    Difference("statistics: of a warmed model", f"{LATER}warm-up", everything),
    Difference(
        "statistics: of all models",
        f"{LATER}so fewer models are listed",
        bodies(lambda body: re.sub(rb"\('(decoupled|queueing|warmed)', '1'\)(, )?", b"", body)),
    ),
]

#: The same for the statistics: by the script's name, the counters that move here instead.
COUNTED_OTHERWISE: dict[str, dict[str, int]] = {
    # One failed request is one failure, though the real server counts its step's as well.
    "an ensemble's failure counts twice": {"fail": 1},
    # Response senders are not served yet, so the model raises.
    "a response through the sender": {"fail": 1, "execution_count": 1, "batches of 1": 1},
}


def comparable(case: Case, exchange: Exchange, differences: Iterable[Difference] = ()) -> Exchange:
    """Take out of an exchange what is not compared for this case."""
    result = case.unstable(exchange)
    for difference in differences:
        if difference.concerns(case):
            result = difference.forget(result)
    return result
