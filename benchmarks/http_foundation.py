"""Which HTTP foundation leaves the most room: canned v2 replies from several, under one load.

    python benchmarks/http_foundation.py [--seconds 3] [--concurrency 16]

Every candidate answers the same URLs with the same bytes and runs no model, so the figures are
ceilings. The load is perf_analyzer, small binary infer requests; candidates take turns, twice.
Candidates that are not installed are named and left out.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import re
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TENSOR = '{"name":"%s","datatype":"FP32","shape":[4]}'
CONFIG_TENSOR = '{"name":"%s","data_type":"TYPE_FP32","dims":[4]}'
# perf_analyzer measures the version whose counts have moved: here time moves them.
STATS = (
    '{"model_stats":[{"name":"canned","version":"1","last_inference":%(now)d,'
    '"inference_count":%(now)d,"execution_count":%(now)d,"inference_stats":{'
    '"success":{"count":%(now)d,"ns":0},"fail":{"count":0,"ns":0},"queue":{"count":%(now)d,"ns":0},'
    '"compute_input":{"count":0,"ns":0},"compute_infer":{"count":0,"ns":0},'
    '"compute_output":{"count":0,"ns":0}},"batch_stats":[]}]}'
)
REPLY_JSON = (
    b'{"model_name":"canned","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32",'
    b'"shape":[4],"parameters":{"binary_data_size":16}}]}'
)
MODEL = (
    '{"name":"canned","versions":["1"],"platform":"python",'
    f'"inputs":[{TENSOR % "IN"}],"outputs":[{TENSOR % "OUT"}]}}'
)
CONFIG = (
    '{"name":"canned","backend":"python","max_batch_size":0,'
    f'"input":[{CONFIG_TENSOR % "IN"}],"output":[{CONFIG_TENSOR % "OUT"}]}}'
)
JSON_REPLIES = {
    "/v2": '{"name":"canned","version":"1","extensions":["statistics"]}',
    "/v2/models/canned": MODEL,
    "/v2/models/canned/config": CONFIG,
}


def canned(url: str) -> tuple[str, dict[str, str], bytes]:
    """Type, extra headers and body of the reply to `url`; unknown URLs are empty."""
    if url.endswith("/infer"):
        headers = {"Inference-Header-Content-Length": str(len(REPLY_JSON))}
        return "application/octet-stream", headers, REPLY_JSON + bytes(16)
    if url.endswith("/stats"):
        return "application/json", {}, (STATS % {"now": time.time() * 1000}).encode()
    return "application/json", {}, JSON_REPLIES.get(url, "").encode()


def serve_connection(port: int) -> None:
    """The reference server's own connections: llhttp on uvloop, no framework."""
    import uvloop

    from reference_server.frontends.http.connection import HttpConnection
    from reference_server.frontends.http.reading import KnownHeads
    from reference_server.frontends.http.request import Request

    def handle(request: Request) -> None:
        kind, headers, body = canned(request.url.decode())
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        request.reply(b"200 OK", [body], pairs, content_type=kind.encode())

    async def main() -> None:
        scratch, heads = memoryview(bytearray(1 << 18)), KnownHeads()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: HttpConnection(
                handle, loop.call_soon, scratch, lambda _: None, lambda _: None, heads=heads
            ),
            "127.0.0.1",
            port,
        )
        await server.serve_forever()

    uvloop.run(main())


def serve_aiohttp(port: int) -> None:
    """aiohttp's low-level server on uvloop."""
    import uvloop
    from aiohttp import web

    async def handle(request: web.BaseRequest) -> web.Response:
        await request.read()
        kind, headers, body = canned(request.path)
        return web.Response(body=body, headers=headers, content_type=kind)

    async def main() -> None:
        runner = web.ServerRunner(web.Server(handle))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()

    uvloop.run(main())


def serve_uvicorn(port: int) -> None:
    """uvicorn on uvloop and httptools with a bare ASGI application."""
    import uvicorn

    async def app(scope, receive, send):
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        kind, headers, body = canned(scope["path"])
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        pairs += [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": pairs})
        await send({"type": "http.response.body", "body": body})

    uvicorn.run(app, port=port, loop="uvloop", http="httptools", log_level="error")


CANDIDATES = {"connection": serve_connection, "aiohttp": serve_aiohttp, "uvicorn": serve_uvicorn}


def measure(candidate: str, concurrency: int, seconds: float) -> float:
    """Requests per second of one candidate, started for this and stopped again."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen([sys.executable, __file__, "--serve", candidate, str(port)])
    try:
        deadline = time.monotonic() + 20
        while socket.socket().connect_ex(("127.0.0.1", port)):
            if server.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{candidate} did not start")
            time.sleep(0.05)
        command = [sys.executable, str(ROOT / "tools" / "oracle.py"), "perf", "-m", "canned"]
        command += ["-u", f"127.0.0.1:{port}", "-i", "http", "-s", "50", "-r", "4"]
        command += ["--concurrency-range", str(concurrency), "-p", str(int(seconds * 1000))]
        report = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    finally:
        server.terminate()
        server.wait()
    rates = re.findall(r"throughput: ([0-9.]+) infer/sec", report)
    if not rates:
        raise SystemExit(f"perf_analyzer gave no figure for {candidate}:\n{report[-2000:]}")
    return float(rates[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3, help="length of a window (3)")
    parser.add_argument("--concurrency", type=int, default=16, help="requests in flight (16)")
    parser.add_argument("--serve", nargs=2, metavar=("CANDIDATE", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        CANDIDATES[options.serve[0]](int(options.serve[1]))
        return
    packages = {"connection": "httptools", "aiohttp": "aiohttp", "uvicorn": "uvicorn"}
    present = [name for name in CANDIDATES if importlib.util.find_spec(packages[name])]
    for name in CANDIDATES.keys() - set(present):
        print(f"{name}: not installed, left out")
    rates: dict[str, list[float]] = {name: [] for name in present}
    for _ in range(2):
        for name in present:
            rates[name].append(measure(name, options.concurrency, options.seconds))
            print(f"{name:<12} {rates[name][-1]:>10,.0f} requests/s", flush=True)
    means = {name: statistics.mean(values) for name, values in rates.items()}
    print(f"\n{'foundation':<12} {'requests/s':>12} {'of connection':>14}")
    for name, mean in means.items():
        print(f"{name:<12} {mean:>12,.0f} {mean / means['connection']:>14.2f}")


if __name__ == "__main__":
    main()
