"""`python -m reference_server`, and the command `reference-server`."""

import gc
import importlib
import sys

#: What a first argument that is no option runs; each module has a `main` that takes the others.
_COMMANDS = {
    "check": "reference_server.checking.command",
    "page": "reference_server.watching.command",
}


def main() -> int:
    """Run the command line; the exit code."""
    if module := _COMMANDS.get("".join(sys.argv[1:2])):
        return int(importlib.import_module(module).main(sys.argv[2:]))
    # Nothing that is imported is garbage: imports take an eighth less time without looks at it, and
    # what is frozen is not looked at while serving either.
    gc.disable()
    from reference_server.cli import main as run

    gc.freeze()
    gc.enable()
    return run()


if __name__ == "__main__":
    sys.exit(main())
