"""acl.mdl's dump: the order of its calls, its configuration, and the files of each operator."""

import json
import struct

import numpy as np
import pytest
from simulator.support.driving import ok
from simulator.support.models import MATRIX, Loaded, breaks, compile_to, rows, texts

from ascend_simulator.codes import Code
from ascend_simulator.models.dumps import dump_file


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a configuration file; its dump folder exists."""
    (tmp_path / "dump").mkdir()

    def write(**section):
        section.setdefault("dump_path", str(tmp_path / "dump"))
        section.setdefault("dump_list", [{"model_name": "model"}])
        path = tmp_path / "acl.json"
        path.write_text(json.dumps({"dump": section}))
        return str(path)

    return write


def dumped(tmp_path):
    """Return the files below the folder named after the time."""
    (began,) = (tmp_path / "dump").iterdir()
    return sorted(file.relative_to(began) for file in began.rglob("*") if file.is_file())


def test_each_operator_of_each_execution_has_a_file(acl, tmp_path, written):
    mdl = acl.mdl
    path = compile_to(tmp_path, rows(2))
    other = compile_to(tmp_path, rows(2), "other")
    before = Loaded(acl, path)
    ok(mdl.init_dump())
    ok(mdl.set_dump(written(dump_mode="all")))
    model, unnamed = Loaded(acl, path), Loaded(acl, other)
    for each in (model, before, unnamed, model):
        ok(each.execute())
    ok(mdl.finalize_dump())
    after = Loaded(acl, path)
    ok(after.execute())
    files = dumped(tmp_path)
    assert [file.parts[:4] for file in files] == [("0", "model", str(model.id), i) for i in "01"]
    assert all(file.name.startswith("MatMul.product.0.") for file in files)
    (began,) = (tmp_path / "dump").iterdir()
    content = (began / files[0]).read_bytes()
    (head,) = struct.unpack_from("<Q", content)
    assert content[8 : 8 + head].endswith(b"product")
    data = np.frombuffer(content[8 + head :], np.float32)
    assert data.size == 2 * 4 + 2 * 3
    x, y = data[:8].reshape(2, 4), data[8:].reshape(2, 3)  # inputs first
    np.testing.assert_allclose(y, x @ MATRIX, rtol=1e-6)


def fields(message):
    """Return number and content of each field of a Protobuf message, as far as dumps need."""

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    at, found = 0, []
    while at < len(message):
        tag = varint()
        value = varint()
        if tag & 7 == 2:
            at, value = at + value, message[at : at + value]
        found.append((tag >> 3, value))
    assert at == len(message)
    return found


def test_a_dump_file_contains_types_dims_and_bytes():
    given, made = np.zeros((1, 300), np.int64), np.zeros((129, 2), np.float16)
    content = dump_file("product", [given], [made], 2**40 + 1)
    (head,) = struct.unpack_from("<Q", content)
    assert len(content) == 8 + head + given.nbytes + made.nbytes
    message = fields(content[8 : 8 + head])
    assert [number for number, _ in message] == [1, 2, 3, 4, 6]
    version, stamp, output, taken, name = (value for _, value in message)
    assert (version, stamp, name) == (b"2.0", 2**40 + 1, b"product")
    for tensor, kind, array, size in ((output, 2, made, 6), (taken, 8, given, 5)):
        message = fields(tensor)
        assert message[0] == (1, kind)
        assert message[-1] == (size, array.nbytes)
        (shape,) = (value for number, value in message if number == 3)
        assert fields(shape) == [(1, dim) for dim in array.shape]


def test_a_file_is_named_after_its_stream(acl, tmp_path, written):
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(written()))
    model = Loaded(acl, compile_to(tmp_path, rows(2)))
    stream = ok(acl.rt.create_stream())
    for each in (0, stream):
        ok(model.execute_async(each))
        ok(acl.rt.synchronize_stream(each))
    default, own = (file.name.split(".")[3] for file in dumped(tmp_path))
    assert default == "0"
    assert int(own) > 0
    ok(acl.mdl.finalize_dump())


def test_operators_may_be_chosen_and_any_model_meant(acl, tmp_path, written):
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(written(dump_list=[{"layer": ["sum"]}])))
    shape = "ids:2,3;mask:2,3"
    ok(Loaded(acl, compile_to(tmp_path, texts(), "any", input_shape=shape)).execute())
    (file,) = dumped(tmp_path)
    assert file.name.startswith("ReduceSum.sum.1.")
    ok(acl.mdl.finalize_dump())


def test_calls_in_the_wrong_order_are_refused(acl, tmp_path, written):
    mdl = acl.mdl
    path = written()
    assert mdl.set_dump(path) == mdl.finalize_dump() == Code.DUMP_NOT_RUN
    assert mdl.init_dump() == 0
    assert mdl.init_dump() == Code.REPEAT_INITIALIZE
    assert mdl.set_dump(str(tmp_path / "missing.json")) == Code.INVALID_FILE
    assert mdl.set_dump(path) == mdl.set_dump(path) == 0
    assert mdl.finalize_dump() == 0
    assert mdl.finalize_dump() == Code.DUMP_NOT_RUN


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"dump_path": "/nowhere/at/all"}, "dump_path: found '/nowhere/at/all'"),
        ({"dump_mode": "some"}, "dump_mode: found 'some', expected output or input or all"),
        ({"dump_list": ["model"]}, "dump_list: found ['model'], expected a list of objects"),
        ({"dump_data": "stats"}, "dump_data: found 'stats'"),
    ],
)
def test_an_invalid_dump_configuration_is_refused_with_its_key(acl, written, section, message):
    ok(acl.mdl.init_dump())
    assert acl.mdl.set_dump(written(**section)) == Code.INVALID_DUMP_CONFIG
    assert message in acl.get_recent_err_msg()
    ok(acl.mdl.finalize_dump())


def test_a_dump_of_acl_init_covers_all_models_and_excludes_init_dump(machine, tmp_path, written):
    acl = machine()
    ok(acl.init(written()))
    ok(acl.rt.set_device(0))
    assert acl.mdl.init_dump() == Code.DUMP_ALREADY_RUN
    ok(Loaded(acl, compile_to(tmp_path, rows(2))).execute())
    assert len(dumped(tmp_path)) == 1


def test_an_empty_dump_list_dumps_nothing(acl, tmp_path, written):
    ok(acl.mdl.init_dump())
    ok(acl.mdl.set_dump(written(dump_list=[])))
    ok(Loaded(acl, compile_to(tmp_path, rows(2))).execute())
    assert not [*(tmp_path / "dump").iterdir()]
    ok(acl.mdl.finalize_dump())


def test_dump_and_profiler_exclude_each_other(acl, tmp_path, written):
    config = acl.prof.create_config([0], 0, 0, 1)
    ok(acl.prof.init(str(tmp_path / "prof")))
    ok(acl.mdl.init_dump())
    ok(acl.prof.start(config))
    with breaks("process.dump-and-profiler"):
        acl.mdl.set_dump(written())
    ok(acl.prof.stop(config))
    ok(acl.mdl.set_dump(written()))
    with breaks("process.dump-and-profiler"):
        acl.prof.start(config)
