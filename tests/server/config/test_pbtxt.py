"""Reading config.pbtxt, and the errors of files that cannot be read."""

import pytest

from reference_server.config import pbtxt
from reference_server.core.errors import Code, ServerError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "config.pbtxt"


def fault(path):
    with pytest.raises(ServerError) as caught:
        pbtxt.read(path)
    assert caught.value.code is Code.INTERNAL
    start = f"failed to read text proto from {path}: "
    assert caught.value.message.startswith(start)
    return caught.value.message.removeprefix(start)


def test_a_file_is_read(path):
    path.write_text('name: "m" max_batch_size: 8 input [ { name: "X" dims: [ 4 ] } ]')
    config = pbtxt.read(path)
    assert (config.name, config.max_batch_size, config.input[0].dims[:]) == ("m", 8, [4])


def test_no_file_is_an_empty_configuration(path):
    assert pbtxt.read(path).ByteSize() == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            'name: "m"\nmax_batch_sise: 8\n',
            '2:1 : Message type "inference.ModelConfig" has no field named "max_batch_sise". '
            "Did you mean 'max_batch_size'?",
            id="misspelt field",
        ),
        pytest.param(
            "dynamic_batching {\n  prefered_batch_size: 4\n}",
            '2:3 : Message type "inference.ModelDynamicBatching" has no field named '
            "\"prefered_batch_size\". Did you mean 'preferred_batch_size'?",
            id="misspelt field inside another",
        ),
        pytest.param(
            "\ufeffxyzzy: 1",
            "1:1 : '<U+FEFF>xyzzy: 1': Expected identifier or number, got <U+FEFF>.",
            id="byte order mark",
        ),
        pytest.param(
            "xyzzy: 1",
            '1:1 : Message type "inference.ModelConfig" has no field named "xyzzy".',
            id="nothing is like it",
        ),
        pytest.param(
            'input { name: "X" data_type: TYPE_FLOAT32 }',
            '1:30 : Enum type "inference.DataType" has no value named TYPE_FLOAT32.',
            id="unknown data type",
        ),
        pytest.param(
            'max_batch_size: "8"',
            '1:17 : Couldn\'t parse integer: "8"',
            id="text for a number",
        ),
    ],
)
def test_an_error_has_line_and_column(path, text, said):
    path.write_text(text)
    shown = fault(path)
    line, _, rest = said.partition(" : ")
    assert shown.startswith(f"{line} : ")
    assert rest in shown


def test_bytes_that_are_not_utf8_are_refused(path):
    path.write_bytes(b'name: "\xff"')
    assert "'utf-8' codec can't decode byte 0xff in position 7" in fault(path)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("", "config.pbtxt"),
        ("special", "configs/special.pbtxt"),
        ("nothing", "config.pbtxt"),
    ],
)
def test_a_named_configuration_is_preferred(tmp_path, name, file):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "special.pbtxt").touch()
    assert pbtxt.locate(tmp_path, name) == tmp_path / file
