"""The output of models: complete lines with names; other output is unchanged."""

import bdb
import io
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.requests import PATIENCE_S

from reference_server.observability import logs
from reference_server.observability.logs import NamedLines, named_output, speak_as, speaking


@pytest.fixture
def shown():
    return io.StringIO()


def test_a_line_of_a_model_has_its_name(shown):
    with speaking("m_0"):
        print("some", 1, file=NamedLines(shown))
    assert shown.getvalue() == "[m_0] some 1\n"


def test_output_without_a_name_is_unchanged(shown):
    stream = NamedLines(shown)
    print("some", end="", file=stream)
    assert shown.getvalue() == "some"
    with speaking("m_0"):
        pass
    stream.write("\nthing")
    assert shown.getvalue() == "some\nthing"


@pytest.mark.brute_force
@given(
    st.text(st.sampled_from("ab\n"), max_size=20),
    st.lists(st.integers(0, 5), max_size=20),
    st.sets(st.integers(0, 20)),
)
def test_each_line_has_the_name_once_however_it_is_split(text, sizes, flushes):
    shown = io.StringIO()
    stream = NamedLines(shown)
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
    assert shown.getvalue() == "".join(expected)


def test_flush_writes_a_partial_line(shown):
    stream = NamedLines(shown)
    with speaking("m_0"):
        print("Proceed? ", end="", flush=True, file=stream)
        assert shown.getvalue() == "[m_0] Proceed? "
        print("yes", file=stream)
    assert shown.getvalue() == "[m_0] Proceed? yes\n"


def test_lines_of_threads_do_not_mix(shown):
    stream = NamedLines(shown)
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
    assert sorted(shown.getvalue().splitlines()) == ["[a] one two", "[b] one two"]


def test_partial_lines_of_all_threads_are_written_at_the_end(shown):
    stream = NamedLines(shown)

    def speak():
        speak_as("m_0")
        print("bye", end="", file=stream)

    thread = threading.Thread(target=speak)
    thread.start()
    thread.join()
    assert shown.getvalue() == ""
    stream.finish()
    assert shown.getvalue() == "[m_0] bye\n"


def test_the_output_of_a_debugger_is_unchanged(shown):
    stream = NamedLines(shown)
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
    assert shown.getvalue() == "(Pdb) [m_0] x\n"


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


def test_a_name_is_restored_after_the_block(shown):
    stream = NamedLines(shown)
    with speaking("outer"):
        with speaking("inner"):
            stream.write("1\n")
        stream.write("2\n")
    stream.write("3\n")
    assert shown.getvalue() == "[inner] 1\n[outer] 2\n3\n"


def test_the_streams_are_replaced_within_the_block(capsys):
    before = sys.stdout, sys.stderr
    with named_output(), speaking("m"):
        print("out")
        print("err", end="", file=sys.stderr)
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr() == ("[m] out\n", "[m] err\n")
    assert logs._speaker.name == ""
