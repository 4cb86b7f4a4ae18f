"""The command `ascend-simulator`: prints the environment for `acl` and `atc`, or the rules."""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from ascend_simulator.settings import PREFIX, PYTHON, Settings, from_environment
from ascend_simulator.violations import RULES

_PACKAGE: Final = Path(__file__).resolve().parent
_OPTIONS: Final = [field.name for field in fields(Settings) if field.name != "visible_devices"]


def main(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> int:
    """Run one command; return the exit code, 2 for invalid settings."""
    parser = argparse.ArgumentParser(
        prog="python -m ascend_simulator",
        description='Replaces acl and atc: eval "$(python -m ascend_simulator env)".',
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ascend-simulator {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    env = commands.add_parser(
        "env", help="print the environment as shell commands", allow_abbrev=False
    )
    env.set_defaults(run=_env)
    for name in _OPTIONS:
        env.add_argument(
            f"--{name.replace('_', '-')}",
            metavar="VALUE",
            help=f"sets {PREFIX}{name.upper()}, default: {getattr(Settings, name)!r}",
        )
    rules = commands.add_parser(
        "rules",
        help="print the rules that the simulator checks and a device does not",
        allow_abbrev=False,
    )
    rules.set_defaults(run=_rules)
    given = vars(parser.parse_args(arguments))
    run: Callable[[dict[str, str], Mapping[str, str]], int] = given.pop("run")
    return run(given, environment)


def _version() -> str:
    try:
        return version("ascend-simulator")
    except PackageNotFoundError:
        return f"(not installed, from {_PACKAGE.parent})"


def _env(given: dict[str, str], environment: Mapping[str, str]) -> int:
    chosen = {PREFIX + name.upper(): value for name, value in given.items() if value is not None}
    try:
        from_environment({**environment, **chosen})
    except ValueError as error:
        print(f"ascend_simulator: {error}", file=sys.stderr)
        return 2
    paths = {
        "PYTHONPATH": [str(_PACKAGE / "site"), str(_PACKAGE.parent)],
        "PATH": [str(_PACKAGE / "site" / "bin")],
    }
    for variable, first in paths.items():
        # Drop entries that an earlier `eval` added.
        rest = [part for part in environment.get(variable, "").split(":") if part not in first]
        print(f"export {variable}={shlex.quote(':'.join([*first, *filter(None, rest)]))}")
    for variable, value in {PYTHON: sys.executable, **chosen}.items():
        print(f"export {variable}={shlex.quote(value)}")
    return 0


def _rules(given: dict[str, str], environment: Mapping[str, str]) -> int:
    for module in ("interface.exports", "exit_report"):  # their imports declare all rules
        importlib.import_module(f"ascend_simulator.{module}")
    width = max(map(len, RULES))
    for name, rule in sorted(RULES.items()):
        print(f"{name:{width}}  {rule.text}{' (only a warning)' if rule.caution else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
