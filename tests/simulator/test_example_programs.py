"""examples/ascend: each program runs without a violation, and with each common mistake.

docs/simulator.md shows both tables; a mistake is one changed line of the program.
"""

import contextlib
import io
import re
import runpy
import shutil
import sys
from pathlib import Path

import onnx
import pytest
from PIL import Image
from simulator.conftest import load_acl

from ascend_simulator import (
    Settings,
    SimulatorViolation,
    SimulatorWarning,
    atc,
    report,
    reset_for_tests,
)

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "ascend"
PAGE = (ROOT / "docs" / "simulator.md").read_text()

PROGRAMS = {
    "copy_sync": ("", "equal: True\n"),
    "copy_async": ("", "equal: True\n"),
    "callbacks": ("static", "classes: [7, 1, 7, 1, 7, 1]\n"),
    "dynamic_batch": ("batch", "1 classes: [1]\n4 classes: [1, 1, 7, 7]\n2 classes: [7, 1]\n"),
    "dynamic_sides": ("sides", "16 x 16 class: 1\n32 x 32 class: 1\n32 x 48 class: 1\n"),
    "two_streams": ("static", "class: 1\nclass: 7\n"),
    "jpeg": ("static picture.jpg", "class: 1\n"),
}
"""Program: the files that it is given, and what it prints."""

WAIT = 'check(acl.rt.synchronize_stream(card.stream), "synchronize_stream")'
FAULTS = {
    "reads before it waited": ("copy_async", f"    {WAIT}\n", "", "memory.busy"),
    "frees before it waited": (
        *("copy_async", f"    {WAIT}\n", "    check(acl.rt.free(device))\n"),
        "memory.free-while-in-use",
    ),
    "copies from an address behind the first byte": (
        *("copy_async", "SIZE, source, SIZE, HOST", "SIZE, source + 4, SIZE - 4, HOST"),
        "memcpy.unaligned",
    ),
    "gives pinned memory back with `free`": (
        *("copy_async", 'free_host(source), "free_host"', 'free(source), "free"'),
        "memory.bad-free",
    ),
    "copies more than the target has": (
        *("copy_sync", "upload(sent, first, SIZE)", "upload(sent[:-1], first + 8, SIZE)"),
        "memory.beyond-block",
    ),
    "takes one kind of copy for all": (
        *("shared", "ptr, array.nbytes, DEVICE_TO_HOST", "ptr, array.nbytes, HOST_TO_DEVICE"),
        "memcpy.kind",
    ),
    "keeps the address of bytes that are gone": (
        *("shared", "bytes_to_ptr(data)\n", "bytes_to_ptr(bytes(bytearray(data)))\n"),
        "util.owner-dropped",
    ),
    "stops the thread of the callbacks first": (
        "callbacks",
        "    for number in range(COUNT):\n",
        "    stop = True\n    acl.util.stop_thread(thread)\n    for number in range(COUNT):\n",
        "callback.not-served",
    ),
    "a callback waits for its stream": (
        *("callbacks", "    number, outputs = arguments\n"),
        "    number, outputs = arguments\n    acl.rt.synchronize_stream(card.stream)\n",
        "callback.waits-for-itself",
    ),
    "sets no gear": (
        "dynamic_batch",
        "        check(acl.mdl.set_dynamic_batch_size(model.id, inputs.dataset, place, batch))\n",
        "",
        "model.gear-not-set",
    ),
    "sets the gear at input 0": (
        *("dynamic_sides", "place = model.gear_place()", "place = 0"),
        "model.gear-elsewhere",
    ),
    "no event between copy and execution": (
        "two_streams",
        '        check(acl.rt.stream_wait_event(card.stream, copied), "stream_wait_event")\n',
        "",
        "stream.race",
    ),
    "destroys a stream and uses it": (
        *("two_streams", 'synchronize_stream(copies), "synch', 'destroy_stream(copies), "synch'),
        "stream.dead",
    ),
    "a stride of 16 for the decoder": (
        *("jpeg", "align(width, 128)", "align(width, 16)"),
        "dvpp.picture",
    ),
    "an odd width goes on to VPC": (
        *("jpeg", "width, height = width // 2 * 2, height // 2 * 2", "pass"),
        "dvpp.picture",
    ),
    "memory of `rt.malloc` for pictures": (
        *("jpeg", "ptr = got(acl.media.dvpp_malloc(size))", "ptr = got(acl.rt.malloc(size, 0))"),
        "dvpp.memory",
    ),
    "forgets the data buffers": (
        *("shared", 'check(acl.destroy_data_buffer(handle), "destroy_data_buffer")', "pass"),
        "process.finalize-leaks",
    ),
    "forgets to unload": (
        *("shared", 'check(acl.mdl.unload(self.id), "unload")', "pass"),
        "context.destroyed-in-use",
    ),
}
"""The mistakes of a program: file, its text, the replacement, the violated rule."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The programs, their models and a picture."""
    made = shutil.copytree(FOLDER, tmp_path_factory.mktemp("examples") / "ascend")
    maker = runpy.run_path(str(made / "make_models.py"))
    onnx.save(maker["classifier"](), made / "classifier.onnx")
    with contextlib.redirect_stdout(io.StringIO()):
        for name in maker["FLAGS"]:
            atc.run(maker["flags"](name, made, "AscendSimulator"))
    Image.new("RGB", (101, 81), (30, 30, 200)).save(made / "picture.jpg")
    return made


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """Run a program as `python PROGRAM.py FILES` does, on a new card; return its output."""

    def run_(program, where=folder, **settings):
        reset_for_tests(Settings(**settings))
        files, _ = PROGRAMS[program]
        suffixed = [name if "." in name else f"{name}.om" for name in files.split()]
        monkeypatch.setattr(sys, "argv", [program, *(str(folder / name) for name in suffixed)])
        monkeypatch.setitem(sys.modules, "acl", load_acl())
        monkeypatch.delitem(sys.modules, "shared", raising=False)
        monkeypatch.syspath_prepend(where)
        runpy.run_path(str(where / f"{program}.py"), run_name="__main__")
        return capsys.readouterr().out

    yield run_
    sys.modules.pop("shared", None)
    reset_for_tests(Settings())


@pytest.mark.brute_force
@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs_without_a_violation_and_leaves_nothing(run, program, seed):
    assert run(program, seed=seed) == PROGRAMS[program][1]
    assert report().broken == {}
    assert report().live == []


@pytest.mark.parametrize("fault", FAULTS)
def test_strict_mode_names_the_line_of_a_fault(run, folder, tmp_path, fault):
    file, text, instead, rule = FAULTS[fault]
    wrong = shutil.copytree(folder, tmp_path / "ascend", ignore=shutil.ignore_patterns("*.om"))
    source = (wrong / f"{file}.py").read_text()
    assert source.count(text) == 1, "found the text not once"
    (wrong / f"{file}.py").write_text(source.replace(text, instead))
    program = file if file != "shared" else "dynamic_batch"
    with pytest.raises((SimulatorViolation, SimulatorWarning)) as raised:
        run(program, wrong, seed=1)
    assert str(raised.value).startswith(f"[{rule}] ")
    first = next(found for found in report().findings if found.rule == rule)
    assert Path(first.origin.file).parent == wrong


def test_the_page_has_the_programs_and_the_faults():
    programs = set(re.findall(r"^\| `examples/ascend/(\w+)\.py` \|", PAGE, re.MULTILINE))
    assert programs == set(PROGRAMS)
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| `([a-z.-]+)` \|$", PAGE, re.MULTILINE)
    assert rows == [(file, fault, rule) for fault, (file, _, _, rule) in FAULTS.items()]
