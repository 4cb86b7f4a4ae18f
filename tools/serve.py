"""Start the reference server and send a first request: what `make serve` runs.

    python tools/serve.py --model-repository DIR [--http-port 8000] [flags of reference_server]

This process becomes the server, so signals and the exit code are those of the server. Another
process waits until the server is ready and sends the request. It ends after the response, or when
the server ends.
"""

from __future__ import annotations

import argparse
import http.client
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

CLIENT = Path(__file__).resolve().parent.parent / "examples" / "classify_text.py"
READY_SECONDS = 60
PAUSE_SECONDS = 0.1


def main(flags: list[str]) -> None:
    """Check the ports, start the process that sends the request, and become the server."""
    parser = argparse.ArgumentParser(add_help=False)
    for name, usual in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
        parser.add_argument(f"--{name}-port", type=int, default=usual)
    parser.add_argument("--log-file", default="")
    given = vars(parser.parse_known_args(flags)[0])
    log: str = given.pop("log_file")
    for name, number in given.items():
        check_free(name, number)
    # The pipe is closed when the server ends, for any reason.
    server_ended, open_while_serving = os.pipe()
    if os.fork() == 0:
        # A grandchild, because the server must not have a child that it did not start.
        if os.fork() == 0:
            os.close(open_while_serving)
            show_first_answer(given, server_ended, log)
        os._exit(0)
    os.wait()
    os.set_inheritable(open_while_serving, True)
    os.execv(
        sys.executable,
        [sys.executable, "-m", "reference_server", "--exit-closes-idle=true", *flags],
    )


def check_free(name: str, port: int) -> None:
    """Exit with a message if another process listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise SystemExit(
                f"port {port}: {error.strerror}; choose another one: "
                f"make serve {name.upper()}=18080"
            ) from error


def show_first_answer(ports: dict[str, int], server_ended: int, log: str) -> None:
    """Wait until the server is ready, run the example client, and print the server's addresses.

    Returns early if the server ends. If the server writes its log to the file `log`, a line of
    progress is printed.
    """
    port = ports["http_port"]
    # Ctrl-C is for the server, and reaches all processes of the terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if log:
        print(f"Server, with its log in {log} ... ", end="", flush=True)
    started = time.monotonic()
    deadline = started + READY_SECONDS
    while not is_ready(port):
        if time.monotonic() > deadline:
            print(f"not ready after {READY_SECONDS} s: no request was sent", flush=True)
            return
        # The wait for the server's end is also the pause between two checks.
        if select.select([server_ended], [], [], PAUSE_SECONDS)[0]:
            if log:
                print(f"The server has ended; see {log}", flush=True)
            return
    if log:
        print(f"{time.monotonic() - started:.1f} s", flush=True)
    url = f"localhost:{port}"
    print(f"\nReady. The first request, by examples/{CLIENT.name}:", flush=True)
    try:
        subprocess.run([sys.executable, CLIENT, "--url", url], check=False, timeout=READY_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"no response after {READY_SECONDS} s", flush=True)
    print(
        f"\nServing on http://{url} (HTTP) and localhost:{ports['grpc_port']} (gRPC)\n"
        f"  live page     http://localhost:{ports['metrics_port']}\n"
        f"  request form  http://{url}/try\n"
        "Ctrl-C stops the server.",
        flush=True,
    )


def is_ready(port: int) -> bool:
    """Return whether the server is ready, by its health endpoint."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    main(sys.argv[1:])
