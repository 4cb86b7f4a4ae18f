"""TLS for gRPC's port: the certificates that the options name, as asyncio wants them."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator

from reference_server.core.errors import invalid_arg
from reference_server.options import TlsOptions


def server_context(options: TlsOptions) -> ssl.SSLContext:
    """A context that speaks HTTP/2 to those who have the right certificates.

    Raises ServerError if a file cannot be read, or is no certificate or key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # RFC 9113, section 9.2.1
    context.set_alpn_protocols(["h2"])
    with _reading(f"'{options.certificate}' with the key '{options.key}'"):
        context.load_cert_chain(options.certificate, options.key)
    if options.demands_client_certificate:
        with _reading(f"the root certificates '{options.root}'"):
            context.load_verify_locations(options.root)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # ssl.SSLError is one
        raise invalid_arg(f"cannot use {what} for gRPC: {error}") from error
