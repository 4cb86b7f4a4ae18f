"""Tests of `Logger`: records with the model's file and line."""

import inspect
import logging
from pathlib import Path

import pytest
from server.backends.kit import model_file
from triton_python_backend_utils import Logger

WRITERS = [
    (Logger.log_info, logging.INFO),
    (Logger.log_warn, logging.WARNING),
    (Logger.log_error, logging.ERROR),
    (Logger.log_verbose, logging.DEBUG),
    (Logger.log, logging.INFO),
    (lambda text: Logger.log(text, Logger.WARNING), logging.WARNING),
    (lambda text: Logger.log(level=Logger.ERROR, message=text), logging.ERROR),
]


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, "reference_server.models")
    return caplog


@pytest.mark.parametrize(("write", "level"), WRITERS)
def test_a_line_has_its_level_and_place(log, write, level):
    line = inspect.currentframe().f_lineno + 1
    write("100 % of 'é'\n")
    (record,) = log.records
    assert record.getMessage() == "100 % of 'é'\n"
    assert (record.name, record.levelno) == ("reference_server.models", level)
    assert record.filename == Path(__file__).name
    if write.__name__ != "<lambda>":
        assert record.lineno == line


def test_a_models_lines_show_the_models_file(tmp_path, open_file, log):
    file = model_file(
        tmp_path,
        """
        from c_python_backend_utils import Logger
        import triton_python_backend_utils as pb_utils
        Logger.log_info("imported")

        class TritonPythonModel:
            def initialize(self, args):
                logger = pb_utils.Logger
                logger.log_warn("initialized")
        """,
    )
    open_file(file)
    written = [(r.message, r.pathname, r.lineno) for r in log.records if "models" in r.name]
    assert written == [("imported", str(file), 4), ("initialized", str(file), 9)]
