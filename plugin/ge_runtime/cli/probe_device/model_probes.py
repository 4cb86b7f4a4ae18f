"""Probes of models and executions: memory, loads, refused calls and costs."""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import asdict
from typing import Final

from ge_runtime.cli.probe_device.exact_graphs import ExactGraph, rolling_matmul
from ge_runtime.cli.probe_device.session import (
    GEARED_GRAPH,
    IMAGE_GRAPH,
    SMALL_GRAPH,
    Answer,
    ProbeSession,
    ProbeSlot,
    find_result,
    right_or_wrong,
)
from ge_runtime.npu.driver.cann_values import GEAR_INPUT, DriverFault
from ge_runtime.npu.driver.driver import ModelId
from ge_runtime.npu.driver.pyacl import PyAclDriver

_ALIGNMENTS: Final = (64, 128, 256)
_LOAD_TYPE, _FROM_FILE, _PATH, _WEIGHT_PATH, _WITHOUT_GRAPH = 1, 1, 2, 14, 28
_KEY_BYTES: Final = 65
_ANY_PROCESS: Final = 1
_MISSING_BYTES: Final = 128
"""Bytes missing from an input buffer. Devices are known to tolerate that 64 bytes are missing."""
_REPEATS: Final = 200
_BEYOND_MEMORY: Final = 2**44
"""An offset larger than the memory of any card."""
_SHARED_BYTES: Final = 2 * 1024 * 1024
"""More than the weights need: memory is exported in whole pages, of up to this size."""


def memory_alignment(session: ProbeSession) -> Answer:
    """Execute a model whose memory is at odd multiples of 64, 128 and 256 bytes."""
    session.open_device()
    found: dict[int, str] = {}
    for offset in _ALIGNMENTS:
        try:
            slot = session.load(offset=offset).slot()
            slot.execute()
            found[offset] = right_or_wrong(slot.is_right())
        except DriverFault as fault:
            found[offset] = str(fault.code)
            break  # after a failure further results mean nothing
    answers = ", ".join(f"{offset}: {answer}" for offset, answer in found.items())
    return Answer(f"results by alignment: {answers}")


def sizes_without_a_device(session: ProbeSession) -> Answer:
    """Query a model's sizes before a device is set."""
    session.init_acl()
    answer = session.raw("mdl.query_size", str(session.compiled(SMALL_GRAPH)))
    message = session.raw("get_recent_err_msg")
    return Answer(
        f"query_size returns {answer[-1]} without a device",
        {"query_size": list(answer), "text": message, "soc": session.raw("get_soc_name")},
    )


def options_of_a_load(session: ProbeSession) -> Answer:
    """Load a model with each of the two options that pyACL may pass on incorrectly."""
    session.open_device()
    folder = ctypes.create_string_buffer(str(session.folder).encode())
    options: dict[str, tuple[int, int | str]] = {
        "neither": (_LOAD_TYPE, _FROM_FILE),
        "WITHOUT_GRAPH_INT32": (_WITHOUT_GRAPH, 1),
        "WEIGHT_PATH_PTR as an address": (_WEIGHT_PATH, ctypes.addressof(folder)),
        "WEIGHT_PATH_PTR as a str": (_WEIGHT_PATH, str(session.folder)),
    }
    found = {name: _load_with(session, *option) for name, option in options.items()}
    return Answer("; ".join(f"{name}: {result}" for name, result in found.items()))


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
            return f"set_config_opt returns {code}"
        model, code = session.raw("mdl.load_with_config", handle)
        if code == 0:
            session.call("mdl.unload", model)
        return f"load_with_config returns {code}"
    finally:
        session.call("mdl.destroy_config_handle", handle)


def weights_of_another_process(session: ProbeSession) -> Answer:
    """Load the same model in another process, with the weights in this process's memory."""
    session.open_device()
    weights = session.malloc(_SHARED_BYTES)
    slot = session.load(weights=weights).slot()
    slot.execute()
    key = session.call(
        "rt.ipc_mem_get_export_key", weights, _SHARED_BYTES, _KEY_BYTES, _ANY_PROCESS
    )
    text = key if isinstance(key, str) else key.decode("latin-1")
    stdout, _ = session.start("imported_weights", type(key).__name__, text).communicate(timeout=60)
    outcome, other, evidence = find_result(stdout) or ("died", "no answer", {})
    slot.execute()
    right = slot.is_right()
    session.call("rt.ipc_mem_close", key)
    other = other if outcome == "answered" else f"{outcome}, {other}"
    return Answer(
        f"the other process is {other}; afterwards this process is {right_or_wrong(right)}",
        {"other": evidence, "right": right},
    )


def imported_weights(session: ProbeSession, key_type: str, text: str) -> Answer:
    """Execute a model with imported weights: the other process of `weights_of_another_process`."""
    session.open_device()
    weights = session.import_memory(text if key_type == "str" else text.encode("latin-1"))
    slot = session.load(weights=weights).slot()
    slot.execute()
    right = slot.is_right()
    return Answer(right_or_wrong(right), {"right": right})


def description_of_a_geared_model(session: ProbeSession) -> Answer:
    """Describe a model with gears of rows, and execute it at each gear."""
    return _description(session, GEARED_GRAPH, "mdl.set_dynamic_batch_size")


def description_of_an_image_model(session: ProbeSession) -> Answer:
    """Describe a model with gears of height and width, and execute it at each gear."""
    return _description(session, IMAGE_GRAPH, "mdl.set_dynamic_hw_size")


def _description(session: ProbeSession, graph: ExactGraph, setter: str) -> Answer:
    """Describe a model with gears through the driver, and its outputs at each gear."""
    session.open_device()
    model = session.load(graph)
    slot, driver, number = model.slot(), PyAclDriver(session.acl), ModelId(model.number)
    description = driver.describe(number)
    dims, right = [], []
    for gear in graph.gears:
        sizes = (gear,) if isinstance(gear, int) else gear
        session.call(setter, model.number, slot.inputs, slot.gear_input, *sizes)
        dims.append(driver.output_dims(number, 1)[0])
        slot.execute()
        right.append(slot.is_right(gear))
    names = [tensor.name for tensor in (*description.inputs, *description.outputs)]
    gears = description.images or description.batches
    open_dims = description.inputs[0].dims
    follows = dims == [graph.shape(gear) for gear in graph.gears]
    largest = description.outputs[0].dims == graph.shape()
    expected = [
        names[1:2] == [GEAR_INPUT],
        open_dims == tuple(-1 if isinstance(dim, str) else dim for dim in graph.dims),
        {*gears} == {*graph.gears},
    ]
    return Answer(
        f"tensors {', '.join(names)}; gears {gears}, input {open_dims}; output dims follow the "
        f"gear: {follows}; initially the largest gear's: {largest}; results right: {right}",
        {
            "as_expected": all([*expected, follows, largest, *right]),
            "description": asdict(description),
            "outputs": dims,
        },
    )


def one_model_on_two_streams(session: ProbeSession) -> Answer:
    """Execute a model on a stream while it executes on another stream."""
    session.open_device()
    model = session.load()
    busy, other = model.slot(), model.slot()
    first, second = session.stream(), session.stream()
    queued = model.keep_busy(busy, first)
    code = other.submit_code(second)
    waits = [session.wait_code(stream) for stream in (first, second)]
    right = [slot.is_right() for slot in (busy, other)]
    return Answer(
        f"execute_async returns {code}, the waits {waits}; results right: {right}",
        {"execute_async": code, "waits": waits, "right": right, "queued_before": queued},
    )


def buffers_that_do_not_fit(session: ProbeSession) -> Answer:
    """Execute without the input buffer, and with an input buffer whose stated size is too small."""
    session.open_device()
    model = session.load()
    slot, stream = model.slot(), session.stream()
    none = session.dataset([], [])
    short = session.dataset(slot.input_addresses, [model.input_bytes[0] - _MISSING_BYTES])
    codes, texts = [], []
    for inputs in (none, short):
        codes.append(session.code("mdl.execute_async", model.number, inputs, slot.outputs, stream))
        texts.append(session.raw("get_recent_err_msg"))
    wait = session.wait_code(stream)
    slot.submit(stream)
    session.wait(stream)
    right = slot.is_right()
    return Answer(
        f"{codes[0]} for too few inputs, {codes[1]} for an input {_MISSING_BYTES} bytes short; the "
        f"next execution is {right_or_wrong(right)}",
        {"codes": codes, "texts": texts, "waiting afterwards": wait, "right afterwards": right},
    )


def after_a_time_limit(session: ProbeSession) -> Answer:
    """Stop waiting for a stream after 1 ms, wait again, and execute again."""
    session.open_device()
    model = session.load()
    # The second slot's output has not been filled by an earlier execution.
    busy, slot, stream = model.slot(), model.slot(), session.stream()
    queued = model.keep_busy(busy, stream)
    waits = [session.wait_code(stream, 1), session.wait_code(stream)]
    again = slot.submit_code(stream)
    waits.append(session.wait_code(stream))
    right = slot.is_right()
    return Answer(
        f"waiting returns {waits[0]}, waiting again {waits[1]}, execute_async then {again} and "
        f"{waits[2]}; its result is {right_or_wrong(right)}",
        {"waits": waits, "execute_async": again, "right": right, "queued": queued},
    )


def after_a_failed_execution(session: ProbeSession) -> Answer:
    """Execute with an invalid output address, then again in the same stream and a new context."""
    session.open_device()
    model, stream = session.load(), session.stream()
    slot, other = model.slot(), model.slot()
    invalid = session.dataset([slot.output_address + _BEYOND_MEMORY], [model.output_bytes])
    failed = [
        session.code("mdl.execute_async", model.number, slot.inputs, invalid, stream),
        session.wait_code(stream),
    ]
    same, same_verdict = _execute(session, model.number, slot, stream)
    session.context()
    new, new_verdict = _execute(session, session.load().number, other, session.stream())
    return Answer(
        f"execute_async and the wait return {failed[0]} and {failed[1]}; then in the same stream "
        f"{same[0]} and {same[1]}, {same_verdict}; in a new context, with the model loaded again, "
        f"{new[0]} and {new[1]}, {new_verdict}",
        {"failed": failed, "same_stream": same, "new_context": new},
    )


def _execute(
    session: ProbeSession, model: int, slot: ProbeSlot, stream: int
) -> tuple[list[int], str]:
    """Return the codes of an execution and of the wait for it, and the verdict on its output."""
    codes = [
        session.code("mdl.execute_async", model, slot.inputs, slot.outputs, stream),
        session.wait_code(stream),
    ]
    try:
        return codes, right_or_wrong(slot.is_right())
    except DriverFault as fault:
        return codes, f"not readable: {fault.code}"


def gear_while_the_stream_works(session: ProbeSession) -> Answer:
    """Set a model's gears while another thread submits another model to the same stream."""
    session.open_device()
    busy, geared = session.load().slot(), session.load(GEARED_GRAPH)
    slots = {gear: geared.slot() for gear in GEARED_GRAPH.gears}
    context, stream = session.call("rt.get_context"), session.stream()
    failures: list[str] = []

    def submit() -> None:
        try:
            session.call("rt.set_context", context)
            for _ in range(_REPEATS):
                busy.submit(stream)
        except Exception as error:
            failures.append(str(error))

    thread = threading.Thread(target=submit)
    thread.start()
    took_ms = {}
    for gear, slot in slots.items():
        begin = time.perf_counter()
        session.call(
            "mdl.set_dynamic_batch_size", geared.number, slot.inputs, slot.gear_input, gear
        )
        took_ms[gear] = round((time.perf_counter() - begin) * 1e3, 3)
        slot.submit(stream)
    thread.join()
    session.wait(stream)
    right = {gear: slot.is_right(gear) for gear, slot in slots.items()}
    fine = all(right.values()) and busy.is_right() and not failures
    return Answer(
        f"{'yes' if fine else 'no'}: results right {right}, the other model's {busy.is_right()}; "
        f"a setter took at most {max(took_ms.values()):.2f} ms",
        {"right": right, "setter_ms": took_ms, "failures": failures},
    )


def changed_addresses(session: ProbeSession) -> Answer:
    """Time submissions with the same buffers, alternating buffers, and new addresses."""
    session.open_device()
    model = session.load(rolling_matmul(rows=4, width=64, layers=4))
    slots, stream = [model.slot(), model.slot()], session.stream()
    buffer = session.handle("create_data_buffer", slots[0].input_addresses[0], model.input_bytes[0])
    inputs = session.handle("mdl.create_dataset")
    session.call("mdl.add_dataset_buffer", inputs, buffer)

    def updated(repeat: int) -> None:
        address = slots[repeat % 2].input_addresses[0]
        session.call("update_data_buffer", buffer, address, model.input_bytes[0])
        session.call("mdl.execute_async", model.number, inputs, slots[0].outputs, stream)

    ways = {
        "same": lambda repeat: slots[0].submit(stream),
        "alternating": lambda repeat: slots[repeat % 2].submit(stream),
        "updated": updated,
    }
    times = {}
    for name, submit in ways.items():
        submit(0)  # not timed: the first submission also pays for one-time set-up
        session.wait(stream)
        begin = time.perf_counter()
        for repeat in range(_REPEATS):
            submit(repeat)
        submitted = time.perf_counter()
        session.wait(stream)
        ended = time.perf_counter()
        times[name] = [round((at - begin) / _REPEATS * 1e6, 1) for at in (submitted, ended)]
    session.call("mdl.destroy_dataset", inputs)
    session.call("destroy_data_buffer", buffer)
    answers = "; ".join(f"{name} {one} us and {both} us" for name, (one, both) in times.items())
    return Answer(f"submitting, and with the wait: {answers}")
