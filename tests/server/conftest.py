"""What all tests of the server share."""

import logging

import pytest

from reference_server.observability import logs


@pytest.fixture(autouse=True)
def logging_untouched():
    """The server's command and its log settings hold for a process; here each test begins anew."""
    root = logging.getLogger(logs.ROOT)
    root.handlers[:], root.propagate = [], True
    root.setLevel(logging.NOTSET)  # which also has loggers forget what they were found to show
