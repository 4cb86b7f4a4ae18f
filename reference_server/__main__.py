"""`python -m reference_server`, and the command `reference-server`."""

import gc
import sys


def main() -> int:
    """Run the command line; the exit code."""
    # Nothing that is imported is garbage: imports take an eighth less time without looks at it, and
    # what is frozen is not looked at while serving either.
    gc.disable()
    from reference_server.cli import main as run

    gc.freeze()
    gc.enable()
    return run()


if __name__ == "__main__":
    sys.exit(main())
