"""The command `reference-server check DIR`: options and exit codes."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from reference_server.checking.faults import Rules, check_repositories
from reference_server.checking.reports import REPORTS
from reference_server.core.errors import ServerError
from reference_server.core.profiles import NEWEST, PROFILES
from reference_server.options import BACKEND_DIRECTORY


def main(arguments: Sequence[str]) -> int:
    """Check repositories. Return 0 if all models may load, 1 if one cannot load.

    Exits with code 2 if an option is invalid.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    # Log lines of the loader are about this machine; its errors are reported.
    logging.getLogger("reference_server").addHandler(logging.NullHandler())
    rules = Rules(PROFILES[given.triton_version], given.backend_directory, given.model_config_name)
    try:
        result = check_repositories(given.repositories, rules)
    except (ServerError, OSError) as error:
        parser.error(str(error))
    sys.stdout.write(REPORTS[given.format](result))
    return 1 if result.errors else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="reference-server check",
        description="Find errors in model repositories without loading a model.",
    )
    parser.add_argument("repositories", nargs="+", type=Path, metavar="DIR")
    parser.add_argument(
        "--format", choices=list(REPORTS), default="text", help="format of the report (text)"
    )
    parser.add_argument(
        "--triton-version",
        choices=list(PROFILES),
        default=NEWEST.name,
        help=f"the tritonserver release whose rules apply ({NEWEST.name})",
    )
    parser.add_argument(
        "--backend-directory",
        type=Path,
        default=BACKEND_DIRECTORY,
        metavar="DIR",
        help="directory of Python-based backends, as for the server",
    )
    parser.add_argument(
        "--model-config-name",
        default="",
        metavar="NAME",
        help="prefer configs/NAME.pbtxt, as the server does",
    )
    return parser
