"""The reference server as an ASGI application in uvicorn, with the options of the command line.

python -m benchmarks.attack.asgi_server --model-repository=... --http-port=8000
"""

from __future__ import annotations

import argparse
import sys

import uvicorn

from reference_server.asgi import application


def main() -> None:
    """Serve HTTP; there is no gRPC."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--http-port", type=int)
    port = parser.parse_known_args()[0].http_port
    app = application(sys.argv[1:])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
