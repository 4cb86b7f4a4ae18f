"""The files that states begin with."""

import pytest
from server.support.configs import model_config

from reference_server.core.errors import Code, ServerError
from reference_server.repository.model_files import read_initial_states

STATE = """
    sequence_batching { state {
        input_name: "I" output_name: "O" data_type: TYPE_%s dims: [2]
        initial_state { name: "i" data_type: TYPE_%s dims: [2] data_file: "first" }
    } }
"""


def read(folder, datatype, data):
    (folder / "initial_state").mkdir()
    if data is not None:
        (folder / "initial_state" / "first").write_bytes(data)
    batching = model_config(STATE % (datatype, datatype)).sequence_batching
    return read_initial_states(batching, folder)


@pytest.mark.parametrize(
    ("datatype", "data", "kept"),
    [
        ("INT32", b"abcdefgh", b"abcdefgh"),
        ("INT32", b"abcdefgh and more", b"abcdefgh"),
        ("STRING", b"\1\0\0\0a\0\0\0\0", b"\1\0\0\0a\0\0\0\0"),
    ],
)
def test_the_bytes_that_are_needed(tmp_path, datatype, data, kept):
    assert read(tmp_path, datatype, data) == {"I": kept}


REFUSED = {
    "no file": (
        "INT32",
        None,
        Code.INTERNAL,
        "failed to open text file for read {}/initial_state/first: No such file or directory",
    ),
    "too few bytes": (
        "INT32",
        b"abc",
        Code.INVALID_ARG,
        "initial_state setting expects 8 bytes, but the data provided from firstonly has 3 bytes.",
    ),
    "one string": (
        "STRING",
        b"\1\0\0\0a",
        Code.INVALID_ARG,
        "initial_state setting expects 2 strings, but the data provided from first has 1.",
    ),
    "no strings": (
        "STRING",
        b"\1\0",
        Code.INVALID_ARG,
        "initial_state file {}/initial_state/first is not a list of strings",
    ),
}


@pytest.mark.parametrize(("datatype", "data", "code", "text"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_will_not_do(tmp_path, datatype, data, code, text):
    with pytest.raises(ServerError) as caught:
        read(tmp_path, datatype, data)
    assert (caught.value.code, caught.value.message) == (code, text.format(tmp_path))
