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


def test_a_message_may_be_bytes(log):
    Logger.log_info("né".encode())
    assert log.records[0].getMessage() == "né"


@pytest.mark.parametrize("name", ["log_info", "log_warn", "log_error", "log_verbose"])
def test_other_messages_are_refused(name):
    with pytest.raises(TypeError, match=r"^argument 'message': found 5; expected str or bytes$"):
        getattr(Logger, name)(5)


@pytest.mark.parametrize("level", [1, "INFO", logging.INFO])
def test_other_levels_are_refused(level):
    with pytest.raises(TypeError, match=r"^argument 'level': found .*; expected LogLevel$"):
        Logger.log("x", level)


def test_logger_cannot_be_instantiated():
    with pytest.raises(
        TypeError, match=r"^cannot create 'c_python_backend_utils.Logger' instances$"
    ):
        Logger()


def test_levels_have_tritons_repr_and_str():
    assert [
        str(level) for level in (Logger.INFO, Logger.WARNING, Logger.ERROR, Logger.VERBOSE)
    ] == [
        "LogLevel.INFO",
        "LogLevel.WARNING",
        "LogLevel.ERROR",
        "LogLevel.VERBOSE",
    ]
    assert repr(Logger.VERBOSE) == "<LogLevel.VERBOSE: 3>"
