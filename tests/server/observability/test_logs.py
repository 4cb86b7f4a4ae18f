"""Log lines, the tail of the log, the output of models, and the start-up table."""

import bdb
import contextlib
import fcntl
import io
import logging
import os
import pty
import struct
import sys
import termios
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.requests import PATIENCE_S

from reference_server.observability import logs
from reference_server.observability.logs import (
    LogTail,
    NamedLines,
    TritonFormatter,
    model_table,
    named_output,
    speak_as,
    speaking,
    terminal_width,
)
from reference_server.options import LogOptions


def record(message, *, level=logging.INFO, created=1700000000.5, **more):
    fields = {
        "name": "reference_server",
        "levelno": level,
        "msg": message,
        "created": created,
        "process": 77,
        "filename": "cli.py",
        "lineno": 5,
    }
    return logging.makeLogRecord(fields | more)


def formatted(record, *, iso8601=False):
    return TritonFormatter(iso8601=iso8601).format(record)


# ---------------------------------------------------------------------------------------- format


@pytest.mark.parametrize(
    ("level", "letter"),
    [
        (logging.DEBUG, "I"),
        (logging.INFO, "I"),
        (logging.WARNING, "W"),
        (logging.ERROR, "E"),
        (logging.CRITICAL, "E"),
    ],
)
def test_a_line_begins_with_level_time_process_and_place(level, letter):
    line = formatted(record("ready", level=level))
    assert line == f'{letter}1114 22:13:20.500000 77 cli.py:5] "ready"'


def test_iso8601_has_the_date_first():
    line = formatted(record("ready", level=logging.WARNING), iso8601=True)
    assert line == '2023-11-14T22:13:20Z W 77 cli.py:5] "ready"'


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ('say "x"\\', r'"say \"x\"\\"'),
        ("two\nlines", r'"two\nlines"'),
        ("naïve 数字", '"naïve 数字"'),
    ],
)
def test_text_is_quoted_on_one_line(text, quoted):
    assert formatted(record(text)).endswith(f"] {quoted}")


def test_a_verbatim_block_follows_its_head():
    line = formatted(record("+--+\n|  |", verbatim=True))
    assert line == "I1114 22:13:20.500000 77 cli.py:5]\n+--+\n|  |"


def test_an_exception_is_part_of_the_text():
    try:
        raise ValueError("bad")
    except ValueError:
        line = formatted(record("failed", exc_info=sys.exc_info()))
    assert '] "failed\\nTraceback (most recent call last):\\n' in line
    assert line.endswith('ValueError: bad"')


# ----------------------------------------------------------------------------------- configure


@pytest.fixture(autouse=True)
def no_file_stays_open():
    yield
    logger = logging.getLogger(logs.ROOT)
    for handler in logger.handlers:
        with contextlib.suppress(OSError):  # closing writes, too, which a full disk refuses
            handler.close()
    logger.handlers.clear()


@pytest.fixture
def shown(tmp_path):
    """A function that logs one record per level and returns the levels written."""
    root = logging.getLogger(logs.ROOT)

    def write(**options):
        file = tmp_path / "log"
        logs.configure(LogOptions(file=str(file), **options))
        logger = logging.getLogger("reference_server.somewhere")
        for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
            logger.log(level, logging.getLevelName(level))
        for handler in root.handlers:
            handler.close()
        lines = file.read_text(encoding="utf-8").splitlines()
        return [line.rsplit('"', 2)[1] for line in lines]

    return write


@pytest.mark.parametrize(
    ("options", "levels"),
    [
        ({}, ["INFO", "WARNING", "ERROR"]),
        ({"verbose_level": 1}, ["DEBUG", "INFO", "WARNING", "ERROR"]),
        ({"info": False}, ["WARNING", "ERROR"]),
        ({"info": False, "verbose_level": 2}, ["DEBUG", "WARNING", "ERROR"]),
        ({"warning": False, "error": False}, ["INFO"]),
    ],
)
def test_each_level_has_its_own_switch(shown, options, levels):
    assert shown(**options) == levels


def test_without_a_file_records_go_to_stderr(shown, capsys):
    shown()
    logs.configure(LogOptions(iso8601=True))
    logging.getLogger("reference_server.x").warning("here")
    captured = capsys.readouterr()
    assert captured.err.endswith('] "here"\n')
    assert captured.out == ""


def test_split_log_has_informational_lines_on_stdout(shown, capsys):
    shown()
    logs.configure(LogOptions(verbose_level=1), splits=True)
    logger = logging.getLogger("reference_server.x")
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logger.log(level, logging.getLevelName(level))
    captured = capsys.readouterr()
    assert [line.split('"')[1] for line in captured.out.splitlines()] == ["DEBUG", "INFO"]
    assert [line.split('"')[1] for line in captured.err.splitlines()] == ["WARNING", "ERROR"]
    assert logs.info_stream(splits=True) is sys.stdout
    assert logs.info_stream(splits=False) is sys.stderr


def test_other_loggers_are_unchanged(shown):
    root = logging.getLogger()
    before = root.handlers[:], root.level
    shown()
    assert (root.handlers[:], root.level) == before
    assert not logging.getLogger(logs.ROOT).propagate


def test_levels_can_change_while_the_server_runs(shown, tmp_path):
    shown()
    file = tmp_path / "live"
    logs.configure(LogOptions(file=str(file)))
    logger = logging.getLogger("reference_server.x")
    logs.apply(LogOptions(info=False, verbose_level=1, iso8601=True))
    for level in (logging.DEBUG, logging.INFO, logging.WARNING):
        logger.log(level, logging.getLevelName(level))
    for handler in logging.getLogger(logs.ROOT).handlers:
        handler.close()
    lines = file.read_text(encoding="utf-8").splitlines()
    assert [line.rsplit('"', 2)[1] for line in lines] == ["DEBUG", "WARNING"]
    assert all(line[4] == "-" for line in lines)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
def test_a_full_disk_is_reported_once(capfd):
    logs.configure(LogOptions(file="/dev/full"))
    for _ in range(3):
        logging.getLogger("reference_server").error("lost")
    text = "log lines are lost: --log-file=/dev/full: No space left on device\n"
    assert capfd.readouterr().err == text


def test_bytes_that_are_not_text_are_escaped_in_a_line(tmp_path, capfd):
    logs.configure(LogOptions(file=str(tmp_path / "log")))
    logging.getLogger("reference_server").error(
        "input '%s'", b"\xcb".decode("utf-8", "surrogateescape")
    )
    assert (tmp_path / "log").read_text().endswith("] \"input '\\udccb'\"\n")
    assert capfd.readouterr().err == ""


# ------------------------------------------------------------------------------------------ tail


@pytest.fixture
def tail():
    logger = logging.getLogger(logs.ROOT)
    level = logger.level
    tail = LogTail()
    tail.open()
    logs.apply(LogOptions())
    yield tail
    tail.close()
    logger.setLevel(level)


def texts(tail, number=0):
    return [line.partition("]")[2] for _, line in tail.after(number)]


def test_the_tail_keeps_the_shown_levels_without_verbose_lines(tail):
    log = logging.getLogger("reference_server.tests")
    logs.apply(LogOptions(verbose_level=1, warning=False))
    log.info("shown")
    log.debug("what a request held")
    log.warning("not wanted")
    assert texts(tail) == [' "shown"']


def test_the_tail_limits_the_number_and_length_of_lines(tail):
    log = logging.getLogger("reference_server.tests")
    for number in range(300):
        log.info("%s", f"{number} " + "x" * 10_000)
    kept = tail.after(0)
    assert [number for number, _ in kept] == list(range(101, 301))
    assert max(len(line) for _, line in kept) < 2100


def test_a_number_of_an_earlier_process_gets_all_lines(tail):
    logging.getLogger("reference_server.tests").info("new")
    assert texts(tail, 17) == [' "new"']
    assert texts(tail, 1) == []


@pytest.fixture
def output():
    return io.StringIO()


@pytest.mark.brute_force
@given(
    st.text(st.sampled_from("ab\n"), max_size=20),
    st.lists(st.integers(0, 5), max_size=20),
    st.sets(st.integers(0, 20)),
)
def test_each_line_has_the_name_once_however_it_is_split(text, sizes, flushes):
    output = io.StringIO()
    stream = NamedLines(output)
    rest = text
    with speaking("m"):
        for number, size in enumerate(sizes):
            assert stream.write(rest[:size]) == len(rest[:size])
            rest = rest[size:]
            if number in flushes:
                stream.flush()
        stream.write(rest)
    stream.finish()
    *lines, last = text.split("\n")
    expected = [f"[m] {line}\n" for line in lines] + ([f"[m] {last}\n"] if last else [])
    assert output.getvalue() == "".join(expected)


def test_flush_writes_a_partial_line(output):
    stream = NamedLines(output)
    with speaking("m_0"):
        print("Proceed? ", end="", flush=True, file=stream)
        assert output.getvalue() == "[m_0] Proceed? "
        print("yes", file=stream)
    assert output.getvalue() == "[m_0] Proceed? yes\n"


def test_lines_of_threads_do_not_mix(output):
    stream = NamedLines(output)
    turn = threading.Barrier(2, timeout=PATIENCE_S)

    def speak(name):
        speak_as(name)
        for word in ("one ", "two\n"):
            stream.write(word)
            turn.wait()

    threads = [threading.Thread(target=speak, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(output.getvalue().splitlines()) == ["[a] one two", "[b] one two"]


def test_partial_lines_of_all_threads_are_written_at_the_end(output):
    stream = NamedLines(output)

    def speak():
        speak_as("m_0")
        print("bye", end="", file=stream)

    thread = threading.Thread(target=speak)
    thread.start()
    thread.join()
    assert output.getvalue() == ""
    stream.finish()
    assert output.getvalue() == "[m_0] bye\n"


def test_the_output_of_a_debugger_is_unchanged(output):
    stream = NamedLines(output)
    before = sys.gettrace()
    with speaking("m_0"):
        debugger = bdb.Bdb()
        debugger.reset()
        sys.settrace(debugger.trace_dispatch)
        try:
            stream.write("(Pdb) ")
        finally:
            sys.settrace(before)
        stream.write("x\n")
    assert output.getvalue() == "(Pdb) [m_0] x\n"


def test_other_attributes_are_those_of_the_stream(tmp_path):
    with (tmp_path / "out").open("w", encoding="latin-1") as file:
        stream = NamedLines(file)
        assert (stream.fileno(), stream.encoding, stream.isatty()) == (
            file.fileno(),
            "latin-1",
            False,
        )
        with speaking("m"):
            stream.writelines(["a\n", "b\n"])
    assert (tmp_path / "out").read_text() == "[m] a\n[m] b\n"


def test_the_streams_are_replaced_within_the_block(capsys):
    before = sys.stdout, sys.stderr
    with named_output(), speaking("m"):
        print("out")
        print("err", end="", file=sys.stderr)
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr() == ("[m] out\n", "[m] err\n")
    assert logs._speaker.name == ""


TALL = """\
+-------+---------+------------------------+
| Model | Version | Status                 |
+-------+---------+------------------------+
| m     | 1       | UNAVAILABLE: Internal: |
|       |         | At:                    |
| n     | -       | READY                  |
+-------+---------+------------------------+"""


def test_a_status_of_several_lines_takes_several_rows():
    rows = [("m", "1", "UNAVAILABLE: Internal:\n\nAt:\n"), ("n", "-", "READY")]
    assert model_table(rows) == TALL


LONG = (
    "UNAVAILABLE: Internal: no file /models/m/1/model.py, and no folder of this name\n\nAt:\n  x y"
)

IN_A_TERMINAL = """\
+-------+---------+--------------------------------+
| Model | Version | Status                         |
+-------+---------+--------------------------------+
| m     | 1       | UNAVAILABLE: Internal: no file |
|       |         |   /models/m/1/model.py, and no |
|       |         |   folder of this name          |
|       |         | At:                            |
|       |         |   x y                          |
+-------+---------+--------------------------------+"""


def test_a_long_status_is_wrapped_between_words_to_fit_the_terminal():
    assert model_table([("m", "1", LONG)], width=52) == IN_A_TERMINAL


@pytest.mark.parametrize("width", [70, 80, 200])
def test_no_line_is_wider_than_the_terminal(width):
    rows = [("m" * 20, "1", "x" * 500 + " " + "y " * 90), ("n", "12", LONG)]
    lines = model_table(rows, width).splitlines()
    assert {len(line) for line in lines} == {len(lines[0])}
    assert len(lines[0]) <= width


def test_words_are_not_broken_without_a_terminal():
    path = "/folder" * 30
    assert f"| {path} |" in model_table([("m", "1", path)])


def test_only_a_terminal_has_a_width(tmp_path):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 77, 0, 0))
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb"):
        assert terminal_width(terminal) == 77
    assert terminal_width(terminal) is None
    assert terminal_width(io.StringIO()) is None
    with (tmp_path / "log").open("w") as file:
        assert terminal_width(file) is None


def test_a_models_line_names_the_model():
    path = "/models/bert/1/model.py"
    line = formatted(record("hello", name="reference_server.models", pathname=path))
    assert line.endswith(' 77 bert/1/model.py:5] "hello"')


def test_a_name_is_restored_after_the_block(output):
    stream = NamedLines(output)
    with speaking("outer"):
        with speaking("inner"):
            stream.write("1\n")
        stream.write("2\n")
    stream.write("3\n")
    assert output.getvalue() == "[inner] 1\n[outer] 2\n3\n"
