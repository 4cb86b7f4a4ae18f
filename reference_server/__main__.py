"""`python -m reference_server`, and the command `reference-server`."""

import contextlib
import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator

#: The module and function of each subcommand. The function receives the other arguments.
_COMMANDS = {
    "check": ("reference_server.checking.command", "main"),
    "demo": ("reference_server.command.new", "demo"),
    "new": ("reference_server.command.new", "main"),
    "page": ("reference_server.watching", "main"),
    "try": ("reference_server.trying.command", "main"),
}
_CLIENT = "tritonclient.grpc"


def main() -> int:
    """Run the command line and return its exit code."""
    if command := _COMMANDS.get("".join(sys.argv[1:2])):
        module, function = command
        with _without_client_library():
            run_command = getattr(importlib.import_module(module), function)
        return int(run_command(sys.argv[2:]))
    # Imports take an eighth less time without garbage collection, and leave no garbage. Collections
    # while serving skip frozen objects.
    gc.disable()
    with _without_client_library():
        from reference_server.command.cli import main as run

    gc.freeze()
    gc.enable()
    return run()


@contextlib.contextmanager
def _without_client_library() -> Iterator[None]:
    """Import Triton's protobuf messages without the client library of the same package.

    The library and its dependencies (such as gRPC's own library) would take a seventh of the
    start's time and of the server's memory. A later import loads the library, which uses the same
    message classes.
    """
    spec = importlib.util.find_spec(_CLIENT)
    if spec is None or _CLIENT in sys.modules:
        yield
        return
    sys.modules[_CLIENT] = importlib.util.module_from_spec(spec)  # a package without its code
    try:
        yield
    finally:
        del sys.modules[_CLIENT]


if __name__ == "__main__":
    sys.exit(main())
