"""Call sequences of ten public pyACL programs, written anew: each runs without a violation.

The programs are samples of Ascend/samples, tests of pyACL itself, and tools of the community.
"""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from simulator.support.driving import D2D, D2H, H2D, fill, ok
from simulator.support.models import MATRIX, rows_om, static_om

from ascend_simulator import atc, report
from ascend_simulator.codes import Code, RunMode
from ascend_simulator.models import om

FLOAT, HALF, INT32, ND = 0, 1, 3, 2
NV12 = 1
VALUES = np.arange(8, dtype=np.float32).reshape(2, 4)


class Program:
    """The part that the programs share: a device with a context, and a model with datasets."""

    def __init__(self, acl):
        self.acl = acl
        ok(acl.init())
        ok(acl.rt.set_device(0))
        self.context = ok(acl.rt.create_context(0))
        self.stream = ok(acl.rt.create_stream())
        self._undo = []

    def model(self, path=None, *, number=None):
        """Load a file, or use a loaded model; return its id and datasets with device memory."""
        mdl = self.acl.mdl
        if number is None:
            number = ok(mdl.load_from_file(path))
            self._undo.append(lambda: ok(mdl.unload(number)))
        desc = mdl.create_desc()
        ok(mdl.get_desc(desc, number))
        self._undo.append(lambda: ok(mdl.destroy_desc(desc)))
        sizes = [mdl.get_input_size_by_index(desc, at) for at in range(mdl.get_num_inputs(desc))]
        outputs = range(mdl.get_num_outputs(desc))
        return (
            number,
            desc,
            self.dataset([(self.malloc(size), size) for size in sizes]),
            self.dataset(
                [(self.malloc(size), size) for size in (
                    mdl.get_output_size_by_index(desc, at) for at in outputs
                )]
            ),
        )  # fmt: skip

    def dataset(self, ranges):
        acl, dataset = self.acl, self.acl.mdl.create_dataset()
        for ptr, size in ranges:
            buffer = acl.create_data_buffer(ptr, size)
            ok(acl.mdl.add_dataset_buffer(dataset, buffer))
            self._undo.append(lambda own=buffer: ok(acl.destroy_data_buffer(own)))
        self._undo.append(lambda: ok(acl.mdl.destroy_dataset(dataset)))
        return dataset

    def malloc(self, size):
        ptr = ok(self.acl.rt.malloc(size, 0))
        self._undo.append(lambda: ok(self.acl.rt.free(ptr)))
        return ptr

    def pinned(self, size):
        ptr = ok(self.acl.rt.malloc_host(size))
        self._undo.append(lambda: ok(self.acl.rt.free_host(ptr)))
        return ptr

    def at_end(self, undo):
        self._undo.append(undo)

    def address(self, dataset, index=0):
        buffer = self.acl.mdl.get_dataset_buffer(dataset, index)
        return self.acl.get_data_buffer_addr(buffer)

    def upload(self, ptr, array, kind=H2D):
        ok(self.acl.rt.memcpy(ptr, array.nbytes, array.ctypes.data, array.nbytes, kind))

    def download(self, ptr, dims, dtype=np.float32, kind=D2H):
        array = np.empty(dims, dtype)
        ok(self.acl.rt.memcpy(array.ctypes.data, array.nbytes, ptr, array.nbytes, kind))
        return array

    def end(self):
        rt = self.acl.rt
        for undo in reversed(self._undo):
            undo()
        ok(rt.destroy_stream(self.stream))
        ok(rt.destroy_context(self.context))
        ok(rt.reset_device(0))
        ok(self.acl.finalize())


def classify(program, folder):
    """A classifier of Ascend/samples: copies and one execution, each of which waits."""
    number, _, inputs, outputs = program.model(static_om(folder))
    program.upload(program.address(inputs), VALUES)
    ok(program.acl.mdl.execute(number, inputs, outputs))
    np.testing.assert_allclose(program.download(program.address(outputs), (2, 3)), VALUES @ MATRIX)


def answer_by_callback(program, folder):
    """The asynchronous classifier of Ascend/samples: a thread serves the stream's callbacks."""
    acl, found, stop = program.acl, [], []
    number, _, inputs, outputs = program.model(static_om(folder))
    program.upload(program.address(inputs), VALUES)

    def serve(arguments):
        ok(acl.rt.set_context(arguments[0]))
        while not stop:
            acl.rt.process_report(arguments[1])

    thread = ok(acl.util.start_thread(serve, [program.context, 10]))
    ok(acl.rt.subscribe_report(thread, program.stream))
    ok(acl.mdl.execute_async(number, inputs, outputs, program.stream))
    ok(acl.rt.launch_callback(found.append, [7], 1, program.stream))
    ok(acl.rt.synchronize_stream(program.stream))
    ok(acl.rt.unsubscribe_report(thread, program.stream))
    stop.append(True)
    ok(acl.util.stop_thread(thread))
    assert found == [[7]]


def set_batches(program, folder):
    """The sample with a dynamic batch: the gear is set before each execution."""
    number, desc, inputs, outputs = program.model(rows_om(folder))
    place = ok(program.acl.mdl.get_input_index_by_name(desc, "ascend_mbatch_shape_data"))
    for batch in (1, 4):
        values = np.ones((batch, 4), np.float32)
        program.upload(program.address(inputs), values)
        ok(program.acl.mdl.set_dynamic_batch_size(number, inputs, place, batch))
        ok(program.acl.mdl.execute(number, inputs, outputs))
        found = program.download(program.address(outputs), (batch, 3))
        np.testing.assert_allclose(found, values @ MATRIX)


def overlap_copies(program, folder):
    """A community runner: pinned staging, a stream for copies, and events between the streams."""
    acl = program.acl
    number, _, inputs, outputs = program.model(static_om(folder))
    copies = ok(acl.rt.create_stream())
    event = ok(acl.rt.create_event_ex_with_flag(1))
    source = program.pinned(VALUES.nbytes)
    fill(source, VALUES.tobytes())
    size = VALUES.nbytes
    ok(acl.rt.memcpy_async(program.address(inputs), size, source, size, H2D, copies))
    ok(acl.rt.record_event(event, copies))
    ok(acl.rt.stream_wait_event(program.stream, event))
    ok(acl.mdl.execute_async(number, inputs, outputs, program.stream))
    ok(acl.rt.synchronize_stream(program.stream))
    np.testing.assert_allclose(program.download(program.address(outputs), (2, 3)), VALUES @ MATRIX)
    ok(acl.rt.destroy_event(event))
    ok(acl.rt.destroy_stream(copies))


OPERATORS = [
    {
        "op": "Cast",
        "input_desc": [{"format": "ND", "shape": [6], "type": "float"}],
        "output_desc": [{"format": "ND", "shape": [6], "type": "float16"}],
        "attr": [{"name": "truncate", "type": "bool", "value": False}],
    },
    {
        "op": "ArgMaxV2",
        "input_desc": [
            {"format": "ND", "shape": [6], "type": "float16"},
            {"format": "ND", "shape": [1], "type": "int32", "is_const": True, "const_value": [0]},
        ],
        "output_desc": [{"format": "ND", "shape": [1], "type": "int32"}],
    },
    {
        "op": "Add",
        "input_desc": [{"format": "ND", "shape": [2, 3], "type": "float"}] * 2,
        "output_desc": [{"format": "ND", "shape": [2, 3], "type": "float"}],
    },
]


def take_the_best_class(program, folder):
    """The sample with single operators: Cast and ArgMaxV2 on the output of a model."""
    acl = program.acl
    (folder / "operators.json").write_text(json.dumps(OPERATORS))
    flags = [f"--singleop={folder}/operators.json", f"--output={folder}/operators"]
    assert atc.main([*flags, "--soc_version=AscendSimulator"]) == 0
    ok(acl.op.set_model_dir(str(folder / "operators")))
    number, _, inputs, outputs = program.model(static_om(folder))
    program.upload(program.address(inputs), VALUES)
    ok(acl.mdl.execute(number, inputs, outputs))
    given, half = (acl.create_tensor_desc(each, [6], ND) for each in (FLOAT, HALF))
    axis, best = (acl.create_tensor_desc(INT32, [1], ND) for _ in range(2))
    dimension = bytes(4)
    ok(acl.set_tensor_const(axis, acl.util.bytes_to_ptr(dimension), 4))
    halves, answer = program.malloc(12), program.malloc(4)
    ranges = ((halves, 12), (0, 0), (answer, 4))
    buffers = [acl.create_data_buffer(*each) for each in ranges]
    output = acl.mdl.get_dataset_buffer(outputs, 0)
    ok(acl.op.cast(given, output, half, buffers[0], 0, program.stream))
    attributes = acl.op.create_attr()
    wanted = ([half, axis], buffers[:2], [best], buffers[2:])
    ok(acl.op.execute_v2("ArgMaxV2", *wanted, attributes, program.stream))
    ok(acl.rt.synchronize_stream(program.stream))
    assert program.download(answer, 1, np.int32) == (VALUES @ MATRIX).argmax()
    handle = ok(acl.op.create_handle_for_cast(given, half, 0))
    ok(acl.op.execute_with_handle(handle, [output], buffers[:1], program.stream))
    ok(acl.rt.synchronize_stream(program.stream))
    acl.op.destroy_handle(handle)
    acl.op.destroy_attr(attributes)
    for desc in (given, half, axis, best):
        acl.destroy_tensor_desc(desc)
    for buffer in buffers:
        ok(acl.destroy_data_buffer(buffer))


def update_weights(program, folder):
    """The guide on bundles: a file with two models, which are loaded and unloaded together."""
    acl = program.acl
    file = folder / "bundle.om"
    models = [Path(each).read_bytes() for each in (static_om(folder), rows_om(folder))]
    file.write_bytes(om.bundle(models))
    bundle = ok(acl.mdl.bundle_load_from_file(str(file)))
    assert ok(acl.mdl.bundle_get_model_num(bundle)) == 2
    number = ok(acl.mdl.bundle_get_model_id(bundle, 0))
    program.at_end(lambda: ok(acl.mdl.bundle_unload(bundle)))
    _, _, inputs, outputs = program.model(number=number)
    program.upload(program.address(inputs), VALUES)
    ok(acl.mdl.execute(number, inputs, outputs))
    assert acl.mdl.unload(number) == Code.INVALID_PARAM
    assert acl.mdl.bundle_get_model_id(bundle, 2) == (0, Code.INVALID_PARAM)


class Pictures:
    """The part that programs with DVPP share."""

    def __init__(self, program):
        self.program, self.media = program, program.acl.media
        self.channel = self.media.dvpp_create_channel_desc()
        ok(self.media.dvpp_create_channel(self.channel))
        self.resize = self.media.dvpp_create_resize_config()
        program.at_end(self.close)

    def close(self):
        ok(self.media.dvpp_destroy_resize_config(self.resize))
        ok(self.media.dvpp_destroy_channel(self.channel))
        ok(self.media.dvpp_destroy_channel_desc(self.channel))

    def malloc(self, size):
        ptr = ok(self.media.dvpp_malloc(size))
        self.program.at_end(lambda: ok(self.media.dvpp_free(ptr)))
        return ptr

    def describe(self, desc, width, height, data=None):
        size = width * height * 3 // 2
        data = self.malloc(size) if data is None else data
        fields = {"data": data, "size": size, "format": NV12, "width": width, "height": height}
        fields |= {"width_stride": width, "height_stride": height}
        for name, value in fields.items():
            ok(getattr(self.media, f"dvpp_set_pic_desc_{name}")(desc, value))
        return data

    def area(self, *sides):
        area = self.media.dvpp_create_roi_config(*sides)
        self.program.at_end(lambda: ok(self.media.dvpp_destroy_roi_config(area)))
        return area

    def batch(self, *sizes):
        """Create a batch of pictures of these sizes; return it and their addresses."""
        batch = self.media.dvpp_create_batch_pic_desc(len(sizes))
        self.program.at_end(lambda: ok(self.media.dvpp_destroy_batch_pic_desc(batch)))
        descs = [self.media.dvpp_get_pic_desc(batch, at) for at in range(len(sizes))]
        return batch, [self.describe(one, *size) for one, size in zip(descs, sizes, strict=True)]


def decode_and_crop(program, folder):
    """A detector of the community: a JPEG file is decoded, and an area is cropped and resized."""
    pictures, acl = Pictures(program), program.acl
    file = io.BytesIO()
    Image.new("RGB", (128, 64), (120, 10, 10)).save(file, "JPEG")
    content = np.frombuffer(file.getvalue(), np.uint8)
    width, height, _ = ok(acl.media.dvpp_jpeg_get_image_info(content.ctypes.data, content.size))
    source = pictures.malloc(content.size)
    program.upload(source, content)
    decoded, small = (acl.media.dvpp_create_pic_desc() for _ in range(2))
    pictures.describe(decoded, width, height)
    target = pictures.describe(small, 32, 32)
    stream, channel = program.stream, pictures.channel
    ok(acl.media.dvpp_jpeg_decode_async(channel, source, content.size, decoded, stream))
    area = pictures.area(0, 63, 0, 63)
    ok(acl.media.dvpp_vpc_crop_resize_async(channel, decoded, small, area, pictures.resize, stream))
    ok(acl.rt.synchronize_stream(stream))
    luma = program.download(target, (32, 32), np.uint8)
    assert abs(int(luma.mean()) - 43) <= 2  # 0.299 * 120 + 0.587 * 10 + 0.114 * 10
    paste = pictures.area(0, 15, 0, 15)
    ok(
        acl.media.dvpp_vpc_crop_resize_paste_async(
            channel, decoded, small, area, paste, pictures.resize, stream
        )
    )
    ok(acl.rt.synchronize_stream(stream))
    for desc in (decoded, small):
        ok(acl.media.dvpp_destroy_pic_desc(desc))


def crop_plates(program, folder):
    """A reader of number plates: several areas of each picture, each into a picture of its own."""
    pictures, acl = Pictures(program), program.acl
    given, (first, second) = pictures.batch((64, 32), (64, 32))
    wanted, targets = pictures.batch((32, 16), (32, 16), (32, 16))
    for ptr, value in ((first, 10), (second, 200)):
        program.upload(ptr, np.full(64 * 32 * 3 // 2, value, np.uint8))
    areas = [
        pictures.area(0, 31, 0, 15),
        pictures.area(32, 63, 16, 31),
        pictures.area(0, 63, 0, 31),
    ]
    channel, stream = pictures.channel, program.stream
    made, ret = acl.media.dvpp_vpc_batch_crop_async(channel, given, [2, 1], wanted, areas, stream)
    assert (made, ret) == (wanted, 0)
    ok(acl.rt.synchronize_stream(stream))
    means = [program.download(each, (16, 32), np.uint8).mean() for each in targets]
    assert means == [10, 10, 200]
    wrong = acl.media.dvpp_vpc_batch_crop_async(channel, given, [1, 1], wanted, areas, stream)
    assert wrong == (wanted, Code.INVALID_PARAM)
    ok(
        acl.media.dvpp_vpc_batch_crop_resize_async(
            channel, given, [2, 1], wanted, areas, pictures.resize, stream
        )
    )
    ok(acl.rt.synchronize_stream(stream))


def paste_areas(program, folder):
    """A test of pyACL itself: areas of one picture are pasted into areas of two others."""
    pictures, acl = Pictures(program), program.acl
    given, (source,) = pictures.batch((64, 32))
    wanted, targets = pictures.batch((64, 32), (64, 32))
    program.upload(source, np.full(64 * 32 * 3 // 2, 90, np.uint8))
    for ptr in targets:
        program.upload(ptr, np.zeros(64 * 32 * 3 // 2, np.uint8))
    areas = [pictures.area(0, 31, 0, 15)] * 2
    pastes = [pictures.area(0, 31, 0, 15), pictures.area(32, 63, 16, 31)]
    lists = ([2], wanted, areas, pastes)
    media, channel, stream = acl.media, pictures.channel, program.stream
    ok(
        media.dvpp_vpc_batch_crop_resize_paste_async(
            channel, given, *lists, pictures.resize, stream
        )
    )
    assert ok(media.dvpp_vpc_batch_crop_and_paste_async(channel, given, *lists, stream)) == wanted
    ok(acl.rt.synchronize_stream(stream))
    first, second = (program.download(each, (32, 64), np.uint8) for each in targets)
    assert (first[0, 0], first[31, 63], second[0, 0], second[31, 63]) == (90, 0, 0, 90)


def classify_on_a_board(program, folder):
    """acllite where the program runs on the board: every copy is one within the device."""
    acl = program.acl
    assert ok(acl.rt.get_run_mode()) == RunMode.ACL_DEVICE
    number, _, inputs, outputs = program.model(static_om(folder))
    program.upload(program.address(inputs), VALUES, D2D)
    ok(acl.mdl.execute(number, inputs, outputs))
    found = acl.util.ptr_to_bytes(program.address(outputs), 24)
    np.testing.assert_allclose(np.frombuffer(found, np.float32), (VALUES @ MATRIX).ravel())
    found = program.download(program.address(outputs), (2, 3), kind=D2D)
    np.testing.assert_allclose(found, VALUES @ MATRIX)


PROGRAMS = [
    *(classify, answer_by_callback, set_batches, overlap_copies, take_the_best_class),
    *(update_weights, decode_and_crop, crop_plates, paste_areas, classify_on_a_board),
]


@pytest.mark.parametrize("run", PROGRAMS, ids=lambda run: run.__name__)
def test_a_public_programs_calls_break_no_rule(run, machine, tmp_path):
    mode = "device" if run is classify_on_a_board else "host"
    acl = machine(run_mode=mode, seed=None)
    # A tool of Huawei's probes with get_device whether another library has initialised acl.
    assert acl.rt.get_device() == (0, Code.RT_CONTEXT_NULL)
    program = Program(acl)
    run(program, tmp_path)
    program.end()
    assert report().live == []


def test_a_bundle_is_another_kind_of_file(acl, tmp_path):
    path = static_om(tmp_path)
    assert acl.mdl.bundle_load_from_file(path) == (0, Code.INVALID_PARAM)
    assert acl.mdl.bundle_load_from_file("/no/such.om") == (0, Code.GE_EXEC_MODEL_PATH_INVALID)
    content = om.bundle([Path(path).read_bytes()])
    bundle = ok(acl.mdl.bundle_load_from_mem(acl.util.bytes_to_ptr(content), len(content)))
    assert bundle >= 1 << 31
    assert ok(acl.mdl.bundle_get_model_id(bundle, 0)) == 1
    ok(acl.mdl.bundle_unload(bundle))
    assert acl.mdl.bundle_get_model_num(bundle) == (0, Code.INVALID_BUNDLE_MODEL_ID)
    assert acl.mdl.bundle_get_model_id(bundle, 0) == (0, Code.INVALID_BUNDLE_MODEL_ID)
    assert acl.mdl.bundle_unload(bundle) == Code.INVALID_BUNDLE_MODEL_ID
    whole = om.bundle([content])  # its model is no model
    assert acl.mdl.bundle_load_from_mem(acl.util.bytes_to_ptr(whole), len(whole))[1] != 0


def test_an_operator_must_be_compiled_for_its_tensors(acl, tmp_path, capsys):
    (tmp_path / "operators.json").write_text(json.dumps(OPERATORS))
    folder = tmp_path / "operators"
    assert atc.main([f"--singleop={tmp_path}/operators.json", f"--output={folder}"]) == 0
    assert acl.op.set_model_dir(str(tmp_path / "none")) == Code.INVALID_PARAM
    ok(acl.op.set_model_dir(str(folder)))
    assert acl.op.set_model_dir(str(folder)) == Code.INVALID_PARAM
    desc = acl.create_tensor_desc(FLOAT, [2, 3], ND)
    other = acl.create_tensor_desc(FLOAT, [3, 2], ND)
    ptr = ok(acl.rt.malloc(24, 0))
    buffer, small = acl.create_data_buffer(ptr, 24), acl.create_data_buffer(ptr, 8)
    values = np.arange(6, dtype=np.float32)
    ok(acl.rt.memcpy(ptr, 24, values.ctypes.data, 24, H2D))
    two = [desc, desc], [buffer, buffer]
    ok(acl.op.execute("Add", *two, [desc], [buffer], 0, 0))
    ok(acl.rt.synchronize_stream(0))
    ok(acl.rt.memcpy(values.ctypes.data, 24, ptr, 24, D2H))
    assert values.tolist() == [0, 2, 4, 6, 8, 10]
    for kind, descs in (("Mul", [desc]), ("Add", [other])):
        assert acl.op.execute(kind, *two, descs, [buffer], 0, 0) == Code.OP_NOT_FOUND
    assert acl.op.execute("Add", *two, [desc], [small], 0, 0) == Code.INVALID_PARAM
    attributes = acl.op.create_attr()
    ok(acl.op.set_attr_bool(attributes, "a", 1))
    ok(acl.op.set_attr_int(attributes, "b", 2))
    ok(acl.op.set_attr_float(attributes, "c", 0.5))
    ok(acl.op.set_attr_string(attributes, "d", "e"))
    assert acl.op.execute("Add", *two, [desc], [buffer], attributes, 0) == Code.OP_NOT_FOUND
    assert acl.op.create_handle("Add", two[0], [other], 0) == (0, Code.OP_NOT_FOUND)
    handle = ok(acl.op.create_handle("Add", two[0], [desc], 0))
    ok(acl.op.execute_with_handle(handle, two[1], [buffer], 0))
    ok(acl.rt.synchronize_stream(0))
    with pytest.raises(TypeError):
        acl.op.execute("Add", (desc, desc), [buffer, buffer], [desc], [buffer], 0, 0)
    (file,) = folder.glob("*_Add_*")
    data = file.read_bytes()
    ok(acl.op.load(acl.util.bytes_to_ptr(data), len(data)))
    assert acl.op.load(acl.util.bytes_to_ptr(data[1:]), len(data) - 1) == Code.PARSE_MODEL
    for text in ('[{"op": "Softmax", "input_desc": [], "output_desc": []}]', "[{}]", "{"):
        (tmp_path / "wrong.json").write_text(text)
        assert atc.main([f"--singleop={tmp_path}/wrong.json", f"--output={folder}"]) == 1
    assert "operator Softmax: not simulated" in capsys.readouterr().err


def test_on_a_board_pinned_memory_is_not_aligned_and_serves_the_device(machine, tmp_path):
    acl = machine(run_mode="device")
    program = Program(acl)
    host = program.pinned(VALUES.nbytes)
    assert host % 64
    fill(host, VALUES.tobytes())
    device = program.malloc(VALUES.nbytes)
    ok(acl.rt.memcpy(device, 32, host, 32, D2D))
    assert acl.util.ptr_to_bytes(device, 32) == VALUES.tobytes()
    program.end()
