"""`python -m reference_server`, and the command `reference-server`."""

import contextlib
import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator

#: What a first argument that is no option runs; each module has a `main` that takes the others.
_COMMANDS = {
    "check": "reference_server.checking.command",
    "page": "reference_server.watching.command",
}
_CLIENT = "tritonclient.grpc"


def main() -> int:
    """Run the command line; the exit code."""
    if module := _COMMANDS.get("".join(sys.argv[1:2])):
        return int(importlib.import_module(module).main(sys.argv[2:]))
    # Nothing that is imported is garbage: imports take an eighth less time without looks at it, and
    # what is frozen is not looked at while serving either.
    gc.disable()
    with _client_left_out():
        from reference_server.command.cli import main as run

    gc.freeze()
    gc.enable()
    return run()


@contextlib.contextmanager
def _client_left_out() -> Iterator[None]:
    """Have Triton's messages imported without the client library in whose package they are.

    The client and what it needs (gRPC's own library, for one) would be a seventh of the start's
    time and of the server's memory. Whoever imports it later gets it, with the same messages.
    """
    spec = importlib.util.find_spec(_CLIENT)
    if spec is None or _CLIENT in sys.modules:
        yield
        return
    sys.modules[_CLIENT] = importlib.util.module_from_spec(spec)  # a package, and not its code
    try:
        yield
    finally:
        del sys.modules[_CLIENT]


if __name__ == "__main__":
    sys.exit(main())
