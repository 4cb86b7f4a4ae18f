"""Headers that become parameters: which ones, their names, and precedence."""

import pytest
from server.support.http import Client, get

from reference_server.gateway.forwarding import HeaderForwarding


def added(pattern, *headers, parameters=()):
    """Return the parameters of a request with these headers."""
    requests = []
    Client(requests.append).send(get("/v2", *headers))
    (request,) = requests
    return HeaderForwarding(pattern).added(dict(parameters), request.fields)


HEADERS = ("X-Foo: 1", "x-low: two", "Content-X-a: 3", "Other: x")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("X-.*", ["X-Foo", "x-low", "Content-X-a"]),
        ("^X-", ["X-Foo", "x-low"]),
        ("(?-i)x-", ["x-low"]),
        ("^other$", ["Other"]),
        ("nothing", []),
    ],
)
def test_names_match_anywhere_and_case_insensitively(pattern, names):
    assert list(added(pattern, *HEADERS)) == names


def test_values_are_strings():
    assert added("X", "X-a: 1", "X-b: caf\u00e9") == {"X-a": "1", "X-b": "caf\udce9"}


def test_a_header_replaces_a_parameter():
    assert added("X", "X-a: h", parameters={"X-a": 5, "b": 1}) == {"X-a": "h", "b": 1}


def test_the_last_of_equal_headers_is_used():
    assert added("X", "X-a: 1", "X-a: 2", "x-A: 3") == {"X-a": "2", "x-A": "3"}


def test_an_invalid_pattern_is_rejected():
    with pytest.raises(ValueError, match="is no regular expression"):
        HeaderForwarding("(")
