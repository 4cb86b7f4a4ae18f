"""The options that select requests of a capture: `--model`, `--between` and `--where`."""

from __future__ import annotations

import argparse
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from triton_replay.capture.files import Capture, Exchange
from triton_replay.comparing.differences import model_of
from triton_replay.errors import ReplayError
from triton_replay.wire.bodies import header

_Condition = Callable[[Exchange], bool]

_WHERE: Final = re.compile(r"\s*([a-z]+(?:\.[^\s=!<>~]+)?)\s*(!=|>=|<=|=|>|<|~)\s*(.*?)\s*")
_ORDER: Final[Mapping[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
_Field = Callable[[Exchange], str | float]
_OF_RESPONSES: Final = ("status", "latency", "response", "messages")
_FIELDS: Final[Mapping[str, _Field]] = {
    "number": lambda one: one.request.number,
    "connection": lambda one: one.request.connection,
    "protocol": lambda one: one.request.protocol,
    "method": lambda one: one.request.method,
    "target": lambda one: one.request.target,
    "status": lambda one: one.status.removeprefix("grpc "),
    "latency": lambda one: (one.response.end - one.request.at) / 1e6 if one.response else "",
    "request": lambda one: one.request.body_size,
    "response": lambda one: one.response.body_size if one.response else "",
    "messages": lambda one: len(one.messages),
}
_MODELS_SHOWN: Final = 20


def add_filter_options(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    model_help = "only requests of this model; * stands for any characters; repeatable"
    add("--model", metavar="NAME", action="append", default=[], help=model_help)
    between_help = "only requests within these seconds of the recording; either end may be omitted"
    add("--between", metavar="START:END", help=between_help)
    add(
        "--where",
        metavar="CONDITION",
        action="append",
        default=[],
        help=f"only requests with this property, such as 'latency>50', 'status!=200' or "
        f"'target~/infer$'; fields: {', '.join(_FIELDS)} and header.NAME; latency in ms, request "
        "and response in bytes; repeatable, and all must hold",
    )


@dataclass(frozen=True)
class Filter:
    """A selection of requests."""

    conditions: Sequence[_Condition]

    def keeps(self, exchange: Exchange) -> bool:
        """Return whether all conditions hold for a request."""
        return all(holds(exchange) for holds in self.conditions)

    def apply(self, capture: Capture) -> Capture:
        """Return a capture with the selected requests.

        Raises:
            ReplayError: No request is selected.
        """
        if not self.conditions:
            return capture
        found = replace(capture, exchanges=tuple(filter(self.keeps, capture.exchanges)))
        if not found.exchanges:
            models = sorted({model_of(one.request) for one in capture.exchanges})
            raise ReplayError(
                f"{capture.name}: --model, --between and --where select none of "
                f"{len(capture.exchanges)} requests; its models are "
                f"{', '.join(models[:_MODELS_SHOWN]) or 'none'}"
            )
        return found

    def apply_to_both(self, a: Capture, b: Capture) -> tuple[Capture, Capture]:
        """Return both captures with the requests that are selected in A.

        Requests that only B has are selected by their properties in B.

        Raises:
            ReplayError: No request of A is selected.
        """
        first = self.apply(a)
        kept = {one.request.number for one in first.exchanges}
        left = {one.request.number for one in a.exchanges} - kept
        rest = [one for one in b.exchanges if one.request.number not in left]
        second = [one for one in rest if one.request.number in kept or self.keeps(one)]
        return first, replace(b, exchanges=tuple(second))


def filter_of(args: argparse.Namespace, *, before_response: bool = False) -> Filter:
    """Return the filter that the options describe.

    Args:
        args: The options of `add_filter_options`.
        before_response: Whether requests are selected before their responses are known.

    Raises:
        ReplayError: An option is invalid.
    """
    conditions: list[_Condition] = []
    if args.model:
        models = tuple(args.model)
        conditions.append(
            lambda one: any(fnmatchcase(model_of(one.request), model) for model in models)
        )
    if args.between is not None:
        conditions.append(_between(args.between))
    fields = dict(_FIELDS)
    for name in _OF_RESPONSES if before_response else ():
        del fields[name]
    return Filter([*conditions, *(_where(text, fields) for text in args.where)])


def _between(text: str) -> _Condition:
    first, colon, last = text.partition(":")
    try:
        start, end = float(first or 0) * 1e9, float(last or "inf") * 1e9
    except ValueError:
        start, end = 0.0, -1.0
    if not colon or not 0 <= start < end:
        raise ReplayError(f"--between: found {text!r}, expected START:END in seconds, such as 5:60")
    return lambda one: start <= one.request.at < end


def _where(text: str, fields: Mapping[str, _Field]) -> _Condition:
    found = _WHERE.fullmatch(text)
    name, sign, value = found.groups() if found else ("", "", "")
    field = fields.get(name)
    if name.startswith("header."):
        key = name.removeprefix("header.").lower()
        field = lambda one: header(one.request.headers, key)  # noqa: E731
    if field is None:
        raise ReplayError(
            f"--where: found {text!r}, expected a field, one of = != > >= < <= ~, and a value; the "
            f"fields are {', '.join(fields)} and header.NAME"
        )
    read = field
    try:
        if sign in _ORDER:
            compare, limit = _ORDER[sign], float(value)
            return lambda one: _is_number(read(one)) and compare(float(read(one)), limit)
        if sign == "~":
            pattern = re.compile(value)
            return lambda one: pattern.search(_text(read(one))) is not None
    except (ValueError, re.error) as error:
        kind = "a regular expression" if sign == "~" else "a number"
        raise ReplayError(f"--where: found {text!r}, expected {kind} after {sign}") from error
    return lambda one: (_text(read(one)) == value) == (sign == "=")


def _is_number(value: str | float) -> bool:
    return isinstance(value, float | int) or value.isdecimal()


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.15g}"
