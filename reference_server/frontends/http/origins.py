"""Refusals of requests that a web page may have sent to this server without the user's consent.

A page of any site can send simple requests to a server that the browser reaches (CSRF). If the
owner of the page's DNS name points the name to that server (DNS rebinding), the page can also read
the replies. Other clients send neither `Origin` nor `Sec-Fetch-Site`, and reach the server by its
own name.
"""

from __future__ import annotations

import functools
import ipaddress

from reference_server.frontends.http import status_codes
from reference_server.frontends.http.request import Request
from reference_server.options import WebOptions

_SAFE_METHODS = ("GET", "HEAD")
#: Values of `Sec-Fetch-Site` for a page of this server, and for the user's own action.
_OWN_SITES = ("same-origin", "none")


class WebOrigins:
    """The rules for web pages at one port.

    1. A request with another method than GET and HEAD is refused if a page of another origin sent
       it. Such a page is recognized by `Sec-Fetch-Site` or, without that header, by an `Origin`
       that differs from `Host`.
    2. A request is refused if `Host` is neither an IP address nor a local or allowed name, because
       another name indicates DNS rebinding. At a port that only this machine reaches, this rule
       applies to all requests. At other ports, it applies to connections from this machine: to
       pages of operators, and to requests that have `Origin` but not `Sec-Fetch-Site`.

    Args:
        options: the allowed names.
        address: the address of the port; empty if it is not known.
    """

    def __init__(self, options: WebOptions | None = None, address: str = "") -> None:
        options = options or WebOptions()
        self._is_on = not options.allow_cross_site
        self._allowed = frozenset(name.lower() for name in options.allowed_hosts)
        self._is_local = is_loopback(address)

    def refuses(self, request: Request, *, for_operators: bool = False) -> bool:
        """Answer `request` with status 403 if a rule refuses it, and return whether it was refused.

        With `for_operators`, the reply contains data of the server, although the method is GET.
        """
        text = self._violation(request, for_operators) if self._is_on else ""
        if text:
            request.reply_error(status_codes.FORBIDDEN, text, as_json=True)
        return bool(text)

    def _violation(self, request: Request, for_operators: bool) -> str:
        origin, site = request.header(b"origin"), request.header(b"sec-fetch-site")
        host = request.header(b"host") or ""
        if request.method not in _SAFE_METHODS and (origin is not None or site is not None):
            # Old browsers send no `Sec-Fetch-Site`, and no browser does without TLS or a local
            # name.
            is_own = site in _OWN_SITES if site else _authority(origin or "") == host.lower()
            if not is_own and _name(_authority(origin or "")) not in self._allowed:
                shown = f"Sec-Fetch-Site '{site}'" if origin is None else f"Origin '{origin}'"
                return (
                    f"request of a web page refused: found {shown}; expected a page of this server."
                    " --http-allowed-host allows the pages of a host, and "
                    "--http-allow-cross-site=true the pages of all hosts"
                )
        is_suspicious = for_operators or (origin is not None and site is None)
        if (
            (self._is_local or (is_suspicious and request.is_local))
            and not _is_local_name(_name(host))
            and _name(host) not in self._allowed
        ):
            return (
                f"request refused: found Host '{host}'; expected an IP address or a local name. "
                "--http-allowed-host allows this name"
            )
        return ""


def is_loopback(address: str) -> bool:
    """Return True if only this machine reaches `address`, a name or an IP address."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _authority(origin: str) -> str:
    """Return host and port of an `Origin`; a page without an origin of its own sends `null`."""
    return origin.partition("://")[2].lower()


def _name(authority: str) -> str:
    """Return the host of `host:port` in lower case, without brackets and the root's dot."""
    host, colon, port = authority.rpartition(":")
    if not colon or not port.isdecimal():
        host = authority
    return host.strip("[]").rstrip(".").lower()


@functools.lru_cache(maxsize=8)  # saves 2 us; few entries, because a name may have a megabyte
def _is_local_name(name: str) -> bool:
    """Return True for an IP address or a local name: names of web sites have a dot."""
    if "." not in name or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
