"""What all tests of the server share."""

import logging
import signal

import pytest

from reference_server.observability import logs


@pytest.fixture(autouse=True)
def logging_untouched():
    """The server's command and its log settings hold for a process; here each test begins anew."""
    root = logging.getLogger(logs.ROOT)
    root.handlers[:], root.propagate = [], True
    root.setLevel(logging.NOTSET)  # which also has loggers forget what they were found to show


@pytest.fixture
def signals_as_before():
    """For tests that run the server's `main`, which handles the signals that end it to the last."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
