"""Probes of models: where they may lie, how they are loaded, what they tell of themselves."""

from __future__ import annotations

import ctypes
from dataclasses import asdict
from typing import Final

from ge_runtime.ascend.driver import GEAR_INPUT, ModelId
from ge_runtime.ascend.pyacl import PyAclDriver
from ge_runtime.ascend.return_codes import DriverFault
from ge_runtime.cli.settle.lab import GEARED, PICTURES, SMALL, Answer, Lab
from ge_runtime.cli.settle.processes import start

_ALIGNMENTS: Final = (64, 128, 256)
_LOAD_TYPE, _FROM_FILE, _PATH, _WEIGHT_PATH, _WITHOUT_GRAPH = 1, 1, 2, 14, 28
_KEY_BYTES: Final = 65
_ANY_PROCESS: Final = 1
_SHARED_BYTES: Final = 2 * 1024 * 1024
"""More than the weights: only whole pages may be exported, and this is one of the larger kind."""


def memory_alignment(lab: Lab) -> Answer:
    """Execute a model that lies, with its buffers, at odd multiples of 64, 128 and 256."""
    lab.begin()
    found: dict[int, str] = {}
    for offset in _ALIGNMENTS:
        try:
            slot = lab.load(offset=offset).slot()
            slot.execute()
            found[offset] = "right" if slot.is_right() else "wrong"
        except DriverFault as fault:
            found[offset] = str(fault.code)
            break  # what comes now says nothing
    shown = ", ".join(f"{offset}: {answer}" for offset, answer in found.items())
    return Answer(f"answers by alignment: {shown}")


def sizes_without_a_device(lab: Lab) -> Answer:
    """Ask for a model's sizes before a device is set."""
    lab.init()
    path = str(lab.om(SMALL))
    answer = lab.raw("mdl.query_size", path)
    message = lab.raw("get_recent_err_msg")
    return Answer(
        f"query_size gives {answer[-1]} without a device",
        {"query_size": list(answer), "text": message, "soc": lab.raw("get_soc_name")},
    )


def options_of_a_load(lab: Lab) -> Answer:
    """Set the two options that pyACL may pass wrongly, and load with each."""
    lab.begin()
    folder = ctypes.create_string_buffer(str(lab.folder).encode())
    options: dict[str, tuple[int, int | str]] = {
        "neither": (_LOAD_TYPE, _FROM_FILE),
        "WITHOUT_GRAPH_INT32": (_WITHOUT_GRAPH, 1),
        "WEIGHT_PATH_PTR as an address": (_WEIGHT_PATH, ctypes.addressof(folder)),
        "WEIGHT_PATH_PTR as a str": (_WEIGHT_PATH, str(lab.folder)),
    }
    found = {name: _load_with(lab, *option) for name, option in options.items()}
    return Answer("; ".join(f"{name}: {what}" for name, what in found.items()))


def _load_with(lab: Lab, option: int, value: object) -> str:
    handle = lab.handle("mdl.create_config_handle")
    try:
        lab.call("mdl.set_config_opt", handle, _LOAD_TYPE, _FROM_FILE)
        lab.call("mdl.set_config_opt", handle, _PATH, str(lab.om(SMALL)))
        try:
            code = lab.code("mdl.set_config_opt", handle, option, value)
        except TypeError as error:
            return f"TypeError, {error}"
        if code:
            return f"set_config_opt gives {code}"
        model, code = lab.raw("mdl.load_with_config", handle)
        if code == 0:
            lab.call("mdl.unload", model)
        return f"load_with_config gives {code}"
    finally:
        lab.call("mdl.destroy_config_handle", handle)


def weights_of_another_process(lab: Lab) -> Answer:
    """Have another process load the same model with the weights that lie in this one's memory."""
    lab.begin()
    weights = lab.malloc(_SHARED_BYTES)
    slot = lab.load(weights=weights).slot()
    slot.execute()
    asked = (weights, _SHARED_BYTES, _KEY_BYTES, _ANY_PROCESS)
    key = lab.call("rt.ipc_mem_get_export_key", *asked)
    text = key if isinstance(key, str) else key.decode("latin-1")
    there, found = start(lab, "imported_weights", type(key).__name__, text).answer()
    slot.execute()
    right = slot.is_right()
    lab.call("rt.ipc_mem_close", key)
    return Answer(
        f"the other process: {there}; afterwards this one is {'right' if right else 'wrong'}",
        {"other": found, "right": right},
    )


def imported_weights(lab: Lab, kind: str, text: str) -> Answer:
    """The other process of `weights_of_another_process`."""
    lab.begin()
    key = text if kind == "str" else text.encode("latin-1")
    weights = lab.imported(key)
    slot = lab.load(weights=weights).slot()
    slot.execute()
    right = slot.is_right()
    return Answer(f"it is {'right' if right else 'wrong'}", {"right": right})


def what_a_model_tells(lab: Lab) -> Answer:
    """Describe a model with gears by our own driver, and its outputs at each gear."""
    lab.begin()
    model = lab.load(GEARED)
    slot, driver, number = model.slot(), PyAclDriver(lab.acl), ModelId(model.number)
    description = driver.describe(number)
    outputs = {}
    for gear in GEARED.gears:
        place = len(slot.inputs) - 1
        lab.call("mdl.set_dynamic_batch_size", model.number, slot.given, place, gear)
        outputs[gear] = driver.output_dims(number, 1)[0]
    names = [tensor.name for tensor in (*description.inputs, *description.outputs)]
    follows = outputs == {gear: (gear, GEARED.width) for gear in GEARED.gears}
    largest = description.outputs[0].dims == (GEARED.rows, GEARED.width)
    expected = names[1:2] == [GEAR_INPUT] and follows and largest
    return Answer(
        f"tensors {', '.join(names)}; gears {description.batches}; output dims follow the gear: "
        f"{follows}; are the largest gear's before: {largest}",
        {"as_expected": expected, "description": asdict(description), "outputs": outputs},
    )


def what_a_model_of_images_tells(lab: Lab) -> Answer:
    """Describe a model with gears of height and width, and execute it at each of them."""
    lab.begin()
    model = lab.load(PICTURES)
    slot, driver, number = model.slot(), PyAclDriver(lab.acl), ModelId(model.number)
    description = driver.describe(number)
    outputs, right = {}, []
    for gear in PICTURES.gears:
        place = len(slot.inputs) - 1
        lab.call("mdl.set_dynamic_hw_size", model.number, slot.given, place, *gear)
        outputs["x".join(map(str, gear))] = driver.output_dims(number, 1)[0]
        slot.execute()
        right.append(slot.is_right(gear))
    image, *_ = description.inputs
    names = [tensor.name for tensor in (*description.inputs, *description.outputs)]
    follows = [*outputs.values()] == [PICTURES.shape(gear) for gear in PICTURES.gears]
    largest = description.outputs[0].dims == PICTURES.shape()
    open_dims = image.dims == (1, PICTURES.channels, -1, -1)
    gears = sorted(description.images) == sorted(PICTURES.gears)
    expected = names[1:2] == [GEAR_INPUT] and follows and largest and open_dims and gears
    return Answer(
        f"tensors {', '.join(names)}; gears {description.images}, input {image.dims}; output dims "
        f"follow the gear: {follows}; are the largest gear's before: {largest}; answers right: "
        f"{right}",
        {"as_expected": expected, "description": asdict(description), "outputs": outputs},
    )
