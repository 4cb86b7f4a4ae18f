"""The pytest plugin of this package: the fixture `ascend_card`.

The simulator is loaded when a test uses the fixture, not with pytest.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

_SITE: Final = Path(__file__).parent / "site"
_MARK: Final = "ascend_card"
_INI: Final = "ascend_simulator"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add a setting of pytest.ini."""
    text = "provide the Ascend simulator's `acl` to module-level imports of test files"
    parser.addini(_INI, text, type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register the fixture's mark, and provide `acl` to the collection if configured."""
    text = f"{_MARK}(**settings): settings of the card in the fixture ascend_card"
    config.addinivalue_line("markers", text)
    if config.getini(_INI):
        sys.path.insert(0, str(_SITE))


@pytest.fixture
def ascend_card(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """Provide the module `acl` with a new simulated card, as at the start of a process.

    During the test `import acl` gives the same module, and the command `atc` is the simulator's.
    The test fails if a rule was broken, even if the exception was caught, or if something is left
    on the card. The environment and the mark `ascend_card` determine the settings.
    """
    from ascend_simulator.process import reset_for_tests
    from ascend_simulator.settings import PYTHON, from_environment

    acl = _acl()
    monkeypatch.setitem(sys.modules, "acl", acl)
    monkeypatch.setenv("PATH", str(_SITE / "bin"), prepend=os.pathsep)
    monkeypatch.setenv(PYTHON, sys.executable)
    mark = request.node.get_closest_marker(_MARK)
    reset_for_tests(replace(from_environment(), **mark.kwargs if mark else {}))
    try:
        yield acl
        problems = _problems()
    finally:
        reset_for_tests(from_environment())
    if problems:
        pytest.fail(problems, pytrace=False)


def _acl() -> ModuleType:
    imported = sys.modules.get("acl")
    if imported is None:
        return _load()
    file = str(_SITE / "acl" / "__init__.py")
    if imported.__file__ != file:
        pytest.fail(f"ascend_card: acl was imported from {imported.__file__}, expected {file}")
    return imported


@functools.cache
def _load() -> ModuleType:
    """Load the module without leaving it in sys.modules."""
    sys.path.insert(0, str(_SITE))
    try:
        module = importlib.import_module("acl")
    finally:
        sys.path.remove(str(_SITE))
    return sys.modules.pop("acl", module)


def _problems() -> str:
    """Describe the test's violations, except for the violation that made the test fail."""
    from ascend_simulator.exit_report import left_over, summary
    from ascend_simulator.process import current
    from ascend_simulator.violations import SimulatorViolation, findings

    # pytest stores the test's exception here.
    raised = getattr(sys, "last_value", None)
    reported = raised.rule if isinstance(raised, SimulatorViolation) else None
    found = [each for each in findings() if not each.caution and each.rule != reported]
    now = current()
    lines = [summary(found, now.settings.mode)] if found else []
    left = left_over(now)
    if raised is None and left:
        lines.append(f"Ascend simulator: left on the card: {', '.join(left)}")
    return "\n".join(lines)
