"""Replays over TLS: certificates of the server and of the client."""

import itertools
import shutil
import ssl
import subprocess
from argparse import ArgumentParser
from pathlib import Path

import grpc
import numpy as np
import pytest
import uvloop
from replay.serving import serving
from replay.traffic import response, write_capture
from support.http2 import message

from triton_replay.__main__ import main
from triton_replay.addresses import Address, parse_address
from triton_replay.capture.files import Exchange, read_capture
from triton_replay.capture.records import Request
from triton_replay.commands.tls import add_tls, grpc_tls_of, https_of
from triton_replay.conformance.subject import inspect_server
from triton_replay.replaying.clients import GrpcConnection


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A file with a certificate of localhost, signed by itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, so there are no certificates")
    path = tmp_path_factory.mktemp("certificate") / "all.pem"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    files = ("-keyout", str(path), "-out", f"{path}.crt")
    subprocess.run([*words.split(), *names, *files], check=True, capture_output=True)
    path.write_text(path.read_text() + Path(f"{path}.crt").read_text())
    return str(path)


def context(certificate):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(certificate)
    return made


def test_https_needs_a_trusted_certificate_of_the_host(certificate, tmp_path, capsys):
    capture = write_capture(tmp_path / "a", lambda n, x: response(n, x), [np.ones((1, 1), "<f4")])
    tls = context(certificate)
    tls.load_verify_locations(certificate)
    tls.verify_mode = ssl.CERT_REQUIRED
    with serving(tls=tls) as address:
        ip = f"https://{address}"
        name = ip.replace("127.0.0.1", "localhost")
        client = [f"--ssl-https-client-certificate-file={certificate}"]
        trusted = [f"--ssl-https-ca-certificates-file={certificate}", *client]
        for number, (server, options, code) in enumerate(
            (
                (name, trusted, 0),
                (name, client, 3),
                (name, trusted[:1], 3),
                (ip, trusted, 3),
                (ip, [*trusted, "--ssl-https-verify-host=0"], 0),
                (ip, [*client, "--ssl-https-verify-peer=0"], 0),
                (name, [*trusted, f"--ssl-https-private-key-file={capture}"], 2),
                (name, ["--ssl-https-ca-certificates-file=/nowhere"], 2),
            )
        ):
            output = tmp_path / str(number)
            words = ["replay", str(capture), f"--server={server}", f"--output={output}"]
            assert main([*words, *options]) == code, (server, options)
            if code == 0:
                (exchange,) = read_capture(output).exchanges
                assert exchange.status == "200"
        assert (
            "--ssl-https-ca-certificates-file: found '/nowhere', which" in capsys.readouterr().err
        )
        words = ["ab", str(capture), f"--a={name}", "--b"]
        assert main([*words, name, *trusted]) == 0
        assert main([*words, ip, *trusted]) == 1
        assert "B: no response 2 times: no connection: " in capsys.readouterr().err
        parser = ArgumentParser()
        add_tls(parser)
        tls = https_of(parser.parse_args(trusted), name)
        subject = inspect_server(parse_address(name, "", tls=True), None, "m", 60, tls)
        assert (
            subject.infer()
            .command(subject.server, subject.scheme)
            .endswith(f" {name}/v2/models/m/infer")
        )


def test_calls_use_tls(certificate):
    class Handler(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(lambda request, _: request)

    parser = ArgumentParser()
    add_tls(parser)
    option = f"--ssl-grpc-root-certifications-file={certificate}"
    assert grpc_tls_of(parser.parse_args([option])) is None
    assert grpc_tls_of(parser.parse_args([option]), "https://h:1") is not None
    tls = grpc_tls_of(parser.parse_args(["--ssl-grpc-use-ssl", option]))

    async def call():
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Handler(),))
        pem = Path(certificate).read_bytes()
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(((pem, pem),)))
        await server.start()
        address, clock = Address("localhost", port), itertools.count().__next__
        connection = GrpcConnection(address, clock, lambda _: None, (), 60, None, tls)
        body = message(b"hello")
        asked = Request(0, 0, 0, 0, "POST", "/s/m", (), len(body), body, protocol="grpc")
        try:
            return await connection.send(Exchange(asked, None))
        finally:
            connection.close()
            await server.stop(0)

    assert bytes(uvloop.run(call()).body) == message(b"hello")
