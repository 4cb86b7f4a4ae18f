"""Probes of models and executions: their memory, loads, refused calls and costs."""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import asdict
from typing import Final

from ge_runtime.cli.probe_device.exact_graphs import RollingMatmul
from ge_runtime.cli.probe_device.session import (
    GEARED_GRAPH,
    IMAGE_GRAPH,
    LONG_MS,
    SMALL_GRAPH,
    Answer,
    ProbeSession,
    ProbeSlot,
)
from ge_runtime.npu.driver.description import GEAR_INPUT
from ge_runtime.npu.driver.driver import ModelId
from ge_runtime.npu.driver.pyacl import PyAclDriver
from ge_runtime.npu.driver.return_codes import DriverFault

_ALIGNMENTS: Final = (64, 128, 256)
_LOAD_TYPE, _FROM_FILE, _PATH, _WEIGHT_PATH, _WITHOUT_GRAPH = 1, 1, 2, 14, 28
_KEY_BYTES: Final = 65
_ANY_PROCESS: Final = 1
_SHORT_BY: Final = 128
"""Bytes: more than the 64 that a device is known to let pass."""
_TURNS: Final = 200
_FAR: Final = 2**44
"""Bytes, beyond all memory that a card has."""
_SHARED_BYTES: Final = 2 * 1024 * 1024
"""More than the weights: only whole pages may be exported, and this is one of the larger kind."""


def memory_alignment(session: ProbeSession) -> Answer:
    """Execute a model that lies, with its buffers, at odd multiples of 64, 128 and 256."""
    session.open_device()
    found: dict[int, str] = {}
    for offset in _ALIGNMENTS:
        try:
            slot = session.load(offset=offset).slot()
            slot.execute()
            found[offset] = "right" if slot.is_right() else "wrong"
        except DriverFault as fault:
            found[offset] = str(fault.code)
            break  # what comes now says nothing
    shown = ", ".join(f"{offset}: {answer}" for offset, answer in found.items())
    return Answer(f"answers by alignment: {shown}")


def sizes_without_a_device(session: ProbeSession) -> Answer:
    """Ask for a model's sizes before a device is set."""
    session.init_acl()
    path = str(session.compiled(SMALL_GRAPH))
    answer = session.raw("mdl.query_size", path)
    message = session.raw("get_recent_err_msg")
    return Answer(
        f"query_size gives {answer[-1]} without a device",
        {"query_size": list(answer), "text": message, "soc": session.raw("get_soc_name")},
    )


def options_of_a_load(session: ProbeSession) -> Answer:
    """Set the two options that pyACL may pass wrongly, and load with each."""
    session.open_device()
    folder = ctypes.create_string_buffer(str(session.folder).encode())
    options: dict[str, tuple[int, int | str]] = {
        "neither": (_LOAD_TYPE, _FROM_FILE),
        "WITHOUT_GRAPH_INT32": (_WITHOUT_GRAPH, 1),
        "WEIGHT_PATH_PTR as an address": (_WEIGHT_PATH, ctypes.addressof(folder)),
        "WEIGHT_PATH_PTR as a str": (_WEIGHT_PATH, str(session.folder)),
    }
    found = {name: _load_with(session, *option) for name, option in options.items()}
    return Answer("; ".join(f"{name}: {what}" for name, what in found.items()))


def _load_with(session: ProbeSession, option: int, value: object) -> str:
    handle = session.handle("mdl.create_config_handle")
    try:
        session.call("mdl.set_config_opt", handle, _LOAD_TYPE, _FROM_FILE)
        session.call("mdl.set_config_opt", handle, _PATH, str(session.compiled(SMALL_GRAPH)))
        try:
            code = session.code("mdl.set_config_opt", handle, option, value)
        except TypeError as error:
            return f"TypeError, {error}"
        if code:
            return f"set_config_opt gives {code}"
        model, code = session.raw("mdl.load_with_config", handle)
        if code == 0:
            session.call("mdl.unload", model)
        return f"load_with_config gives {code}"
    finally:
        session.call("mdl.destroy_config_handle", handle)


def weights_of_another_process(session: ProbeSession) -> Answer:
    """Have another process load the same model with the weights that lie in this one's memory."""
    session.open_device()
    weights = session.malloc(_SHARED_BYTES)
    slot = session.load(weights=weights).slot()
    slot.execute()
    asked = (weights, _SHARED_BYTES, _KEY_BYTES, _ANY_PROCESS)
    key = session.call("rt.ipc_mem_get_export_key", *asked)
    text = key if isinstance(key, str) else key.decode("latin-1")
    there, found = session.start("imported_weights", type(key).__name__, text).answer()
    slot.execute()
    right = slot.is_right()
    session.call("rt.ipc_mem_close", key)
    return Answer(
        f"the other process: {there}; afterwards this one is {'right' if right else 'wrong'}",
        {"other": found, "right": right},
    )


def imported_weights(session: ProbeSession, kind: str, text: str) -> Answer:
    """The other process of `weights_of_another_process`."""
    session.open_device()
    key = text if kind == "str" else text.encode("latin-1")
    weights = session.import_memory(key)
    slot = session.load(weights=weights).slot()
    slot.execute()
    right = slot.is_right()
    return Answer(f"it is {'right' if right else 'wrong'}", {"right": right})


def what_a_model_tells(session: ProbeSession) -> Answer:
    """Describe a model with gears by our own driver, and its outputs at each gear."""
    session.open_device()
    model = session.load(GEARED_GRAPH)
    slot, driver, number = model.slot(), PyAclDriver(session.acl), ModelId(model.number)
    description = driver.describe(number)
    outputs = {}
    for gear in GEARED_GRAPH.gears:
        place = len(slot.input_addresses) - 1
        session.call("mdl.set_dynamic_batch_size", model.number, slot.inputs, place, gear)
        outputs[gear] = driver.output_dims(number, 1)[0]
    names = [tensor.name for tensor in (*description.inputs, *description.outputs)]
    follows = outputs == {gear: (gear, GEARED_GRAPH.width) for gear in GEARED_GRAPH.gears}
    largest = description.outputs[0].dims == (GEARED_GRAPH.rows, GEARED_GRAPH.width)
    expected = names[1:2] == [GEAR_INPUT] and follows and largest
    return Answer(
        f"tensors {', '.join(names)}; gears {description.batches}; output dims follow the gear: "
        f"{follows}; are the largest gear's before: {largest}",
        {"as_expected": expected, "description": asdict(description), "outputs": outputs},
    )


def what_a_model_of_images_tells(session: ProbeSession) -> Answer:
    """Describe a model with gears of height and width, and execute it at each of them."""
    session.open_device()
    model = session.load(IMAGE_GRAPH)
    slot, driver, number = model.slot(), PyAclDriver(session.acl), ModelId(model.number)
    description = driver.describe(number)
    outputs, right = {}, []
    for gear in IMAGE_GRAPH.gears:
        place = len(slot.input_addresses) - 1
        session.call("mdl.set_dynamic_hw_size", model.number, slot.inputs, place, *gear)
        outputs["x".join(map(str, gear))] = driver.output_dims(number, 1)[0]
        slot.execute()
        right.append(slot.is_right(gear))
    image, *_ = description.inputs
    names = [tensor.name for tensor in (*description.inputs, *description.outputs)]
    follows = [*outputs.values()] == [IMAGE_GRAPH.shape(gear) for gear in IMAGE_GRAPH.gears]
    largest = description.outputs[0].dims == IMAGE_GRAPH.shape()
    open_dims = image.dims == (1, IMAGE_GRAPH.channels, -1, -1)
    gears = sorted(description.images) == sorted(IMAGE_GRAPH.gears)
    expected = names[1:2] == [GEAR_INPUT] and follows and largest and open_dims and gears
    return Answer(
        f"tensors {', '.join(names)}; gears {description.images}, input {image.dims}; output dims "
        f"follow the gear: {follows}; are the largest gear's before: {largest}; answers right: "
        f"{right}",
        {"as_expected": expected, "description": asdict(description), "outputs": outputs},
    )


def one_model_on_two_streams(session: ProbeSession) -> Answer:
    """Have a model executed on a stream while another stream executes it."""
    session.open_device()
    model = session.load()
    mine, other = model.slot(), model.slot()
    first, second = session.stream(), session.stream()
    queued = model.keep_busy(mine, first)
    code = session.code("mdl.execute_async", model.number, other.inputs, other.outputs, second)
    waits = [
        session.code("rt.synchronize_stream_with_timeout", stream, LONG_MS)
        for stream in (first, second)
    ]
    right = [slot.is_right() for slot in (mine, other)]
    return Answer(
        f"execute_async gives {code}, the waits {waits}; answers right: {right}",
        {"execute_async": code, "waits": waits, "right": right, "queued_before": queued},
    )


def buffers_that_do_not_fit(session: ProbeSession) -> Answer:
    """Execute with a buffer too few, and with one that says it is too short."""
    session.open_device()
    model = session.load()
    slot, stream = model.slot(), session.stream()
    none = session.dataset([], [])
    short = session.dataset(slot.input_addresses, [model.input_bytes[0] - _SHORT_BY])
    codes = {
        "too few inputs": session.code(
            "mdl.execute_async", model.number, none, slot.outputs, stream
        ),
        "too few inputs, text": session.raw("get_recent_err_msg"),
        "short input": session.code("mdl.execute_async", model.number, short, slot.outputs, stream),
        "short input, text": session.raw("get_recent_err_msg"),
        "waiting afterwards": session.code("rt.synchronize_stream_with_timeout", stream, LONG_MS),
    }
    slot.submit(stream)
    session.wait(stream)
    found = [codes[what] for what in ("too few inputs", "short input")]
    right = slot.is_right()
    return Answer(
        f"{found[0]} for too few inputs, {found[1]} for an input {_SHORT_BY} bytes short; the next "
        f"execution is {'right' if right else 'wrong'}",
        {**codes, "right afterwards": right},
    )


def after_a_time_limit(session: ProbeSession) -> Answer:
    """Give up waiting for a stream after 1 ms, wait again, and execute again."""
    session.open_device()
    model = session.load()
    busy, slot, stream = model.slot(), model.slot(), session.stream()
    queued = model.keep_busy(busy, stream)
    waits = [
        session.code("rt.synchronize_stream_with_timeout", stream, limit_ms)
        for limit_ms in (1, LONG_MS)
    ]
    # Into memory that no execution before has filled.
    again = session.code("mdl.execute_async", model.number, slot.inputs, slot.outputs, stream)
    waits.append(session.code("rt.synchronize_stream_with_timeout", stream, LONG_MS))
    right = slot.is_right()
    return Answer(
        f"waiting gives {waits[0]}, waiting again {waits[1]}, execute_async then {again} and "
        f"{waits[2]}; its answer is {'right' if right else 'wrong'}",
        {"waits": waits, "execute_async": again, "right": right, "queued": queued},
    )


def after_a_failed_execution(session: ProbeSession) -> Answer:
    """Have an execution write where no memory is; execute again, there and in a new context."""
    session.open_device()
    model, stream = session.load(), session.stream()
    slot, other = model.slot(), model.slot()
    nowhere = session.dataset([_nowhere(slot.output_address)], [model.output_bytes])
    failed = [
        session.code("mdl.execute_async", model.number, slot.inputs, nowhere, stream),
        session.code("rt.synchronize_stream_with_timeout", stream, LONG_MS),
    ]
    same, same_right = _execute(session, model.number, slot, stream)
    session.context()
    again = session.load()
    new, new_right = _execute(session, again.number, other, session.stream())
    return Answer(
        f"execute_async and the wait give {failed[0]} and {failed[1]}; then in the same stream "
        f"{same[0]} and {same[1]}, {same_right}; in a new context, with the model loaded again, "
        f"{new[0]} and {new[1]}, {new_right}",
        {"failed": failed, "same_stream": same, "new_context": new},
    )


def _nowhere(address: int) -> int:
    """An address that no memory of the device is at."""
    return address + _FAR


def _execute(
    session: ProbeSession, model: int, slot: ProbeSlot, stream: int
) -> tuple[list[int], str]:
    """The codes of an execution and of the wait for it, and what its answer is."""
    codes = [
        session.code("mdl.execute_async", model, slot.inputs, slot.outputs, stream),
        session.code("rt.synchronize_stream_with_timeout", stream, LONG_MS),
    ]
    try:
        return codes, "right" if slot.is_right() else "wrong"
    except DriverFault as fault:
        return codes, f"which cannot be read: {fault.code}"


def gear_while_the_stream_works(session: ProbeSession) -> Answer:
    """Set a model's gears while another thread submits another model to the same stream."""
    session.open_device()
    busy, geared = session.load(), session.load(GEARED_GRAPH)
    mine = busy.slot()
    slots = {gear: geared.slot() for gear in GEARED_GRAPH.gears}
    context, stream = session.call("rt.get_context"), session.stream()
    failures: list[str] = []

    def submit() -> None:
        try:
            session.call("rt.set_context", context)
            for _ in range(_TURNS):
                mine.submit(stream)
        except Exception as error:
            failures.append(str(error))

    thread = threading.Thread(target=submit)
    thread.start()
    took_ms = {
        gear: _set_and_submit(session, geared.number, slots[gear], gear, stream) for gear in slots
    }
    thread.join()
    session.wait(stream)
    right = {gear: slot.is_right(gear) for gear, slot in slots.items()}
    fine = all(right.values()) and mine.is_right() and not failures
    return Answer(
        f"{'yes' if fine else 'no'}: answers right {right}, the other model's {mine.is_right()}; "
        f"a setter took {max(took_ms.values()):.2f} ms at most",
        {"right": right, "setter_ms": took_ms, "failures": failures},
    )


def _set_and_submit(
    session: ProbeSession, model: int, slot: ProbeSlot, gear: int, stream: int
) -> float:
    """Milliseconds that setting took."""
    begin = time.perf_counter()
    session.call(
        "mdl.set_dynamic_batch_size", model, slot.inputs, len(slot.input_addresses) - 1, gear
    )
    took = time.perf_counter() - begin
    slot.submit(stream)
    return round(took * 1e3, 3)


def changed_addresses(session: ProbeSession) -> Answer:
    """Time submissions with the same buffers, with two sets in turn, and with new addresses."""
    session.open_device()
    model = session.load(RollingMatmul(rows=4, width=64, layers=4))
    slots, stream = [model.slot(), model.slot()], session.stream()
    moving = session.handle("create_data_buffer", slots[0].input_addresses[0], model.input_bytes[0])
    given = session.handle("mdl.create_dataset")
    session.call("mdl.add_dataset_buffer", given, moving)

    def updated(turn: int) -> None:
        address = slots[turn % 2].input_addresses[0]
        session.call("update_data_buffer", moving, address, model.input_bytes[0])
        session.call("mdl.execute_async", model.number, given, slots[0].outputs, stream)

    ways = {
        "same": lambda turn: slots[0].submit(stream),
        "two in turn": lambda turn: slots[turn % 2].submit(stream),
        "updated": updated,
    }
    times = {}
    for name, submit in ways.items():
        submit(0)  # the first of its kind pays for what the others find done
        session.wait(stream)
        begin = time.perf_counter()
        for turn in range(_TURNS):
            submit(turn)
        submitted = time.perf_counter()
        session.wait(stream)
        ended = time.perf_counter()
        times[name] = [round((moment - begin) / _TURNS * 1e6, 1) for moment in (submitted, ended)]
    session.call("mdl.destroy_dataset", given)
    session.call("destroy_data_buffer", moving)
    shown = "; ".join(f"{name} {one} us and {both} us" for name, (one, both) in times.items())
    return Answer(f"submitting, and with the wait: {shown}")
