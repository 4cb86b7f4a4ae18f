"""Probes of executions: what is refused, what may happen at the same time, what it costs."""

from __future__ import annotations

import threading
import time
from typing import Final

from ge_runtime.cli.settle.graphs import Moving
from ge_runtime.cli.settle.lab import GEARED, LONG_MS, Answer, Lab, Slot

_SHORT_BY: Final = 128
"""Bytes: more than the 64 that a device is known to let pass."""
_TURNS: Final = 200


def one_model_on_two_streams(lab: Lab) -> Answer:
    """Have a model executed on a stream while another stream executes it."""
    lab.begin()
    model = lab.load()
    mine, other = model.slot(), model.slot()
    first, second = lab.stream(), lab.stream()
    queued = model.keep_busy(mine, first)
    code = lab.code("mdl.execute_async", model.number, other.given, other.wanted, second)
    waits = [
        lab.code("rt.synchronize_stream_with_timeout", stream, LONG_MS)
        for stream in (first, second)
    ]
    right = [slot.is_right() for slot in (mine, other)]
    return Answer(
        f"execute_async gives {code}, the waits {waits}; answers right: {right}",
        {"execute_async": code, "waits": waits, "right": right, "queued_before": queued},
    )


def buffers_that_do_not_fit(lab: Lab) -> Answer:
    """Execute with a buffer too few, and with one that says it is too short."""
    lab.begin()
    model = lab.load()
    slot, stream = model.slot(), lab.stream()
    none = lab.dataset([], [])
    short = lab.dataset(slot.inputs, [model.input_bytes[0] - _SHORT_BY])
    codes = {
        "too few inputs": lab.code("mdl.execute_async", model.number, none, slot.wanted, stream),
        "too few inputs, text": lab.raw("get_recent_err_msg"),
        "short input": lab.code("mdl.execute_async", model.number, short, slot.wanted, stream),
        "short input, text": lab.raw("get_recent_err_msg"),
        "waiting afterwards": lab.code("rt.synchronize_stream_with_timeout", stream, LONG_MS),
    }
    slot.submit(stream)
    lab.wait(stream)
    found = [codes[what] for what in ("too few inputs", "short input")]
    right = slot.is_right()
    return Answer(
        f"{found[0]} for too few inputs, {found[1]} for an input {_SHORT_BY} bytes short; the next "
        f"execution is {'right' if right else 'wrong'}",
        {**codes, "right afterwards": right},
    )


def after_a_time_limit(lab: Lab) -> Answer:
    """Give up waiting for a stream after 1 ms, wait again, and execute again."""
    lab.begin()
    model = lab.load()
    busy, slot, stream = model.slot(), model.slot(), lab.stream()
    queued = model.keep_busy(busy, stream)
    waits = [
        lab.code("rt.synchronize_stream_with_timeout", stream, limit_ms)
        for limit_ms in (1, LONG_MS)
    ]
    # Into memory that no execution before has filled.
    again = lab.code("mdl.execute_async", model.number, slot.given, slot.wanted, stream)
    waits.append(lab.code("rt.synchronize_stream_with_timeout", stream, LONG_MS))
    right = slot.is_right()
    return Answer(
        f"waiting gives {waits[0]}, waiting again {waits[1]}, execute_async then {again} and "
        f"{waits[2]}; its answer is {'right' if right else 'wrong'}",
        {"waits": waits, "execute_async": again, "right": right, "queued": queued},
    )


def gear_while_the_stream_works(lab: Lab) -> Answer:
    """Set a model's gears while another thread submits another model to the same stream."""
    lab.begin()
    busy, geared = lab.load(), lab.load(GEARED)
    mine = busy.slot()
    slots = {gear: geared.slot() for gear in GEARED.gears}
    context, stream = lab.call("rt.get_context"), lab.stream()
    failures: list[str] = []

    def submit() -> None:
        try:
            lab.call("rt.set_context", context)
            for _ in range(_TURNS):
                mine.submit(stream)
        except Exception as error:
            failures.append(str(error))

    thread = threading.Thread(target=submit)
    thread.start()
    took_ms = {
        gear: _set_and_submit(lab, geared.number, slots[gear], gear, stream) for gear in slots
    }
    thread.join()
    lab.wait(stream)
    right = {gear: slot.is_right(gear) for gear, slot in slots.items()}
    fine = all(right.values()) and mine.is_right() and not failures
    return Answer(
        f"{'yes' if fine else 'no'}: answers right {right}, the other model's {mine.is_right()}; "
        f"a setter took {max(took_ms.values()):.2f} ms at most",
        {"right": right, "setter_ms": took_ms, "failures": failures},
    )


def _set_and_submit(lab: Lab, model: int, slot: Slot, gear: int, stream: int) -> float:
    """Milliseconds that setting took."""
    begin = time.perf_counter()
    lab.call("mdl.set_dynamic_batch_size", model, slot.given, len(slot.inputs) - 1, gear)
    took = time.perf_counter() - begin
    slot.submit(stream)
    return round(took * 1e3, 3)


def changed_addresses(lab: Lab) -> Answer:
    """Time submissions with the same buffers, with two sets in turn, and with new addresses."""
    lab.begin()
    model = lab.load(Moving(rows=4, width=64, layers=4))
    slots, stream = [model.slot(), model.slot()], lab.stream()
    moving = lab.handle("create_data_buffer", slots[0].inputs[0], model.input_bytes[0])
    given = lab.handle("mdl.create_dataset")
    lab.call("mdl.add_dataset_buffer", given, moving)

    def updated(turn: int) -> None:
        address = slots[turn % 2].inputs[0]
        lab.call("update_data_buffer", moving, address, model.input_bytes[0])
        lab.call("mdl.execute_async", model.number, given, slots[0].wanted, stream)

    ways = {
        "same": lambda turn: slots[0].submit(stream),
        "two in turn": lambda turn: slots[turn % 2].submit(stream),
        "updated": updated,
    }
    times = {}
    for name, submit in ways.items():
        submit(0)  # the first of its kind pays for what the others find done
        lab.wait(stream)
        begin = time.perf_counter()
        for turn in range(_TURNS):
            submit(turn)
        submitted = time.perf_counter()
        lab.wait(stream)
        ended = time.perf_counter()
        times[name] = [round((moment - begin) / _TURNS * 1e6, 1) for moment in (submitted, ended)]
    lab.call("mdl.destroy_dataset", given)
    lab.call("destroy_data_buffer", moving)
    shown = "; ".join(f"{name} {one} us and {both} us" for name, (one, both) in times.items())
    return Answer(f"submitting, and with the wait: {shown}")
