"""Tests of the text of an exception: type, message and frames, innermost first."""

import pytest

from reference_server.backends.python_host.model_code import describe

FILE = __file__


def described(function, *arguments) -> str:
    try:
        function(*arguments)
    except BaseException as error:
        return describe(error)
    raise AssertionError("nothing was raised")


def line_of(function, offset: int) -> int:
    return function.__code__.co_firstlineno + offset


def fail(error):
    raise error


def outer(error):
    fail(error)


def test_frames_are_listed_innermost_first():
    assert described(outer, ValueError("bad value here")) == (
        "ValueError: bad value here\n\nAt:\n"
        f"  {FILE}({line_of(fail, 1)}): fail\n"
        f"  {FILE}({line_of(outer, 1)}): outer\n"
    )


@pytest.mark.parametrize(
    ("error", "head"),
    [
        (KeyError("k"), "KeyError: 'k'"),
        (KeyboardInterrupt(), "KeyboardInterrupt: <EMPTY MESSAGE>"),
        (SystemExit(3), "SystemExit: 3"),
        (ValueError(""), "ValueError: <EMPTY MESSAGE>"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), "UnicodeDecodeError: 'utf-8' codec"),
    ],
)
def test_the_head_is_the_bare_type_and_the_message(error, head):
    assert described(fail, error).startswith(head)


def test_without_frames_there_is_no_location():
    assert described(lambda: None, 1).startswith("TypeError: ")
    assert "\n" not in described(lambda: None, 1)
    assert described(compile, "def f(:", "model.py", "exec") == (
        "SyntaxError: invalid syntax (model.py, line 1)"
    )


def test_frames_of_the_server_are_left_out():
    def names_a_tensor():
        from triton_python_backend_utils import Tensor

        Tensor("", None)

    assert "native.py" not in described(names_a_tensor)
    assert f"({line_of(names_a_tensor, 3)}): names_a_tensor\n" in described(names_a_tensor)


def test_frames_of_the_import_system_are_left_out(tmp_path, monkeypatch):
    (tmp_path / "raises_xyz.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)

    def imports():
        import raises_xyz  # noqa: F401

    assert described(imports) == (
        "ZeroDivisionError: division by zero\n\nAt:\n"
        f"  {tmp_path}/raises_xyz.py(1): <module>\n"
        f"  {FILE}({line_of(imports, 1)}): imports\n"
    )


def test_causes_are_left_out():
    def chained():
        try:
            fail(ValueError("first"))
        except ValueError as error:
            raise RuntimeError("second") from error

    assert "first" not in described(chained)


def test_a_failing_str_is_reported_with_its_exception():
    class Broken(Exception):
        def __str__(self):
            raise ValueError("in str")

    text = described(fail, Broken())
    assert text == (
        "Broken: <MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>\n\nAt:\n"
        f"  {FILE}({line_of(fail, 1)}): fail\n\n"
        "MESSAGE UNAVAILABLE DUE TO EXCEPTION: ValueError: in str\n\nAt:\n"
        f"  {FILE}({line_of(Broken.__str__, 1)}): __str__\n"
    )
