"""Options of TLS, with perf_analyzer's names, and the contexts that they describe."""

from __future__ import annotations

import argparse
import ssl
from typing import Final

from triton_replay.addresses import HTTPS, Address, Server, parse_address
from triton_replay.errors import ReplayError

_FILES: Final = {
    "grpc": ("root-certifications-file", "certificate-chain-file", "private-key-file"),
    "https": ("ca-certificates-file", "client-certificate-file", "private-key-file"),
}
"""Options with the certificates of authorities, the client's certificate and its key."""


def add_tls(parser: argparse.ArgumentParser) -> None:
    """Add the options of TLS, which addresses with `https://` use."""
    add = parser.add_argument_group("TLS, if an address begins with https://").add_argument
    add("--ssl-grpc-use-ssl", action="store_true", help="use TLS for gRPC with all addresses")
    for protocol, names in _FILES.items():
        for name in names:
            add(f"--ssl-{protocol}-{name}", metavar="FILE", help="in PEM format")
    peer_help, host_help = (f"verify the {what}; default: %(default)s" for what in ("peer", "host"))
    add("--ssl-https-verify-peer", type=int, choices=(0, 1), default=1, help=peer_help)
    add("--ssl-https-verify-host", type=int, choices=(0, 1, 2), default=2, help=host_help)
    for name in ("client-certificate-type", "private-key-type"):
        add(f"--ssl-https-{name}", choices=("PEM",), help="PEM is the only supported format")


def https_of(args: argparse.Namespace, address: str) -> ssl.SSLContext | None:
    """Return the TLS context for an address, or None if the address does not use HTTPS.

    Raises:
        ReplayError: A file cannot be used.
    """
    if not address.startswith(HTTPS):
        return None
    context = _context(args, "https")
    context.check_hostname = bool(args.ssl_https_verify_host and args.ssl_https_verify_peer)
    if not args.ssl_https_verify_peer:
        context.verify_mode = ssl.CERT_NONE
    return context


def server_of(args: argparse.Namespace, option: str, grpc_option: str) -> Server:
    """Return the server whose addresses two options name. gRPC's default is the next port.

    Raises:
        ReplayError: An address or a file cannot be used.
    """
    text, grpc = (getattr(args, each[2:].replace("-", "_")) for each in (option, grpc_option))
    http = parse_address(text, option, tls=True)
    return Server(
        http,
        parse_address(grpc, grpc_option, tls=True) if grpc else Address(http.host, http.port + 1),
        https_of(args, text),
        grpc_tls_of(args, grpc or ""),
    )


def grpc_tls_of(args: argparse.Namespace, address: str = "") -> ssl.SSLContext | None:
    """Return the TLS context for gRPC, or None without TLS. Raise ReplayError like `https_of`."""
    if not args.ssl_grpc_use_ssl and not address.startswith(HTTPS):
        return None
    context = _context(args, "grpc")
    context.set_alpn_protocols(["h2"])
    return context


def _context(args: argparse.Namespace, protocol: str) -> ssl.SSLContext:
    options = [f"--ssl-{protocol}-{name}" for name in _FILES[protocol]]
    authorities, chain, key = (
        getattr(args, option.removeprefix("--").replace("-", "_")) for option in options
    )
    option = options[0]
    try:
        context = ssl.create_default_context(cafile=authorities)
        option = options[1]
        if chain:
            context.load_cert_chain(chain, key)
    except (OSError, ValueError) as error:
        found = authorities if option == options[0] else chain
        text = f"{option}: found {found!r}, which cannot be used: {error}"
        raise ReplayError(text) from error
    return context
