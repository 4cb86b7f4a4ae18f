"""Fixtures for all tests of the server."""

import faulthandler
import logging
import signal

import pytest

from reference_server.observability import logs


@pytest.fixture(autouse=True)
def logging_untouched():
    """Reset the log settings, which are global, before each test."""
    root = logging.getLogger(logs.ROOT)
    root.handlers[:], root.propagate = [], True
    root.setLevel(logging.NOTSET)  # this also clears the loggers' caches of enabled levels


@pytest.fixture
def signals_as_before():
    """Restore the signal handlers after tests of the server's `main`, which replaces them."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    faulthandler.cancel_dump_traceback_later()  # `exit_after` would end the tests
    for number, handler in before.items():
        signal.signal(number, handler)
