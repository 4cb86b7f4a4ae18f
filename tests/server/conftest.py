"""What all tests of the server share."""

import logging

import pytest

from reference_server.observability import logs


@pytest.fixture(autouse=True)
def logging_as_before():
    """The server's command configures logging for its whole process."""
    root = logging.getLogger(logs.ROOT)
    before = root.handlers[:], root.level, root.propagate
    yield
    root.handlers[:], root.level, root.propagate = before
