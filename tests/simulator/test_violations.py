"""Each rule that a device does not check: a scenario, in strict and in lenient mode.

A scenario ends with the one call that violates its rule. In lenient mode that call returns the
table's result: a code if the simulator cannot continue, else 0.
"""

import ctypes
import json
from pathlib import Path

import numpy as np
import pytest
from simulator.support.driving import D2D, D2H, H2D, MIB, Blocked, fill, ok, pages
from simulator.support.models import Loaded, static_om

import ascend_simulator
import ascend_simulator.exit_report
import ascend_simulator.interface.exports  # declares every rule
from ascend_simulator import RULES, SimulatorViolation, SimulatorWarning, current, violations

SCENARIOS = {}
CAUTIONS = {"stream.destroyed-pending", "memcpy.pageable-async", "util.deprecated"}


def breaks(rule, *, lenient=0):
    """`lenient` is the result of the last call in lenient mode; None: not checked."""

    def enter(scenario):
        SCENARIOS.setdefault(rule, []).append((scenario, lenient))
        return scenario

    return enter


# -- process, devices, contexts -------------------------------------------------------------------


@breaks("process.not-initialised", lenient=100001)
def calls_before_init(acl):
    ok(acl.rt.reset_device(0))
    ok(acl.finalize())
    return acl.rt.set_device(0)


@breaks("process.finalize-leaks")
def finalizes_with_memory_left(acl):
    ok(acl.rt.malloc(64, 0))
    return acl.finalize()


@breaks("process.finalize-leaks", lenient=(0, 0))
def drops_the_last_reference_with_an_event_left(acl):
    ok(acl.rt.create_event())
    return acl.finalize_reference()


@breaks("device.set-without-reset")
def finalizes_with_a_device_set(acl):
    ok(acl.rt.set_device(0))
    ok(acl.rt.reset_device(0))
    return acl.finalize()


@breaks("process.dump-and-profiler", lenient=100000)
def configures_dump_and_profiler(acl, tmp_path):
    ok(acl.rt.reset_device(0))
    ok(acl.finalize())
    path = tmp_path / "acl.json"
    path.write_text(json.dumps({"dump": {"dump_list": []}, "profiler": {"switch": "on"}}))
    return acl.init(str(path))


@breaks("device.reset-without-set", lenient=507007)
def resets_a_device_that_was_never_set(acl):
    return acl.rt.reset_device(1)


@breaks("device.reset-without-set", lenient=507007)
def resets_by_force_a_device_that_was_never_set(acl):
    return acl.rt.reset_device_force(1)


@breaks("device.reset-leaks")
def resets_with_a_context_left(acl):
    ok(acl.rt.create_context(0))
    return acl.rt.reset_device(0)


@breaks("device.reset-leaks")
def resets_with_a_stream_left(acl):
    ok(acl.rt.create_stream())
    return acl.rt.reset_device(0)


@breaks("device.reset-leaks")
def resets_with_an_event_left(acl):
    ok(acl.rt.create_event())
    return acl.rt.reset_device(0)


@breaks("device.reset-leaks")
def resets_with_memory_left(acl):
    ok(acl.rt.malloc(64, 0))
    return acl.rt.reset_device(0)


@breaks("context.destroyed-in-use")
def destroys_a_context_with_a_stream_left(acl):
    context = ok(acl.rt.create_context(0))
    ok(acl.rt.create_stream())
    return acl.rt.destroy_context(context)


# -- profiling -------------------------------------------------------------------------------------


def profiled(acl, tmp_path):
    config = acl.prof.create_config([0], 0, 0, 1)
    ok(acl.prof.init(str(tmp_path / "prof")))
    ok(acl.prof.start(config))
    return config


@breaks("prof.dead-config", lenient=100000)
def starts_with_a_destroyed_configuration(acl, tmp_path):
    config = profiled(acl, tmp_path)
    ok(acl.prof.stop(config))
    ok(acl.prof.destroy_config(config))
    return acl.prof.start(config)


@breaks("prof.config-destroyed-running")
def destroys_a_configuration_that_runs(acl, tmp_path):
    return acl.prof.destroy_config(profiled(acl, tmp_path))


@breaks("prof.finalized-running")
def finalizes_a_profiler_that_runs(acl, tmp_path):
    profiled(acl, tmp_path)
    return acl.prof.finalize()


@breaks("prof.model-loaded-before")
def profiles_a_model_that_was_loaded_before(acl, tmp_path):
    model = Loaded(acl, static_om(tmp_path))
    config = profiled(acl, tmp_path)
    ok(model.execute())
    return acl.prof.stop(config)


# -- streams and events ---------------------------------------------------------------------------


@breaks("stream.dead", lenient=107003)
def synchronizes_a_destroyed_stream(acl):
    stream = ok(acl.rt.create_stream())
    ok(acl.rt.destroy_stream(stream))
    return acl.rt.synchronize_stream(stream)


@breaks("stream.dead", lenient=107003)
def uses_a_stream_of_a_device_that_was_reset_by_force(acl):
    stream = ok(acl.rt.create_stream())
    ok(acl.rt.reset_device_force(0))
    ok(acl.rt.set_device(0))
    return acl.rt.synchronize_stream(stream)


@breaks("stream.destroyed-pending")
def destroys_a_stream_with_a_task(acl):
    stream = ok(acl.rt.create_stream())
    device, pinned = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc_host(64))
    ok(acl.rt.memcpy_async(device, 64, pinned, 64, H2D, stream))
    return acl.rt.destroy_stream(stream)


@breaks("stream.race")
def writes_on_two_streams(acl):
    first, second = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())
    device = ok(acl.rt.malloc(256, 0))
    ok(acl.rt.memset_async(device, 256, 1, 128, first))
    return acl.rt.memset_async(device + 127, 129, 2, 1, second)


@breaks("stream.race")
def reads_on_one_stream_what_another_writes(acl):
    writer, reader = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())
    device, pinned = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc_host(64))
    ok(acl.rt.memset_async(device, 64, 1, 64, writer))
    return acl.rt.memcpy_async(pinned, 64, device, 64, D2H, reader)


@breaks("stream.race")
def waits_for_an_event_that_was_recorded_too_early(acl):
    writer, reader = ok(acl.rt.create_stream()), ok(acl.rt.create_stream())
    device, event = ok(acl.rt.malloc(64, 0)), ok(acl.rt.create_event())
    ok(acl.rt.record_event(event, writer))
    ok(acl.rt.memset_async(device, 64, 1, 64, writer))
    ok(acl.rt.stream_wait_event(reader, event))
    return acl.rt.memset_async(device, 64, 2, 64, reader)


@breaks("event.dead", lenient=107000)
def records_a_destroyed_event(acl):
    event = ok(acl.rt.create_event())
    ok(acl.rt.destroy_event(event))
    return acl.rt.record_event(event, 0)


@breaks("event.not-recorded")
def has_a_stream_wait_for_an_event_never_recorded(acl):
    return acl.rt.stream_wait_event(0, ok(acl.rt.create_event()))


@breaks("event.not-recorded")
def waits_for_an_event_never_recorded(acl):
    return acl.rt.synchronize_event(ok(acl.rt.create_event()))


@breaks("event.not-recorded", lenient=(1, 0))
def asks_for_an_event_never_recorded(acl):
    return acl.rt.query_event(ok(acl.rt.create_event()))


@breaks("event.not-recorded")
def waits_for_an_event_that_was_reset(acl):
    event = ok(acl.rt.create_event_with_flag(0x1))
    ok(acl.rt.record_event(event, 0))
    ok(acl.rt.reset_event(event, 0))
    return acl.rt.synchronize_event(event)


@breaks("event.destroyed-while-waited-for")
def destroys_an_event_that_a_stream_waits_for(acl):
    event = ok(acl.rt.create_event())
    stream = ok(acl.rt.create_stream())
    ok(acl.rt.record_event(event, 0))
    ok(acl.rt.stream_wait_event(stream, event))
    return acl.rt.destroy_event(event)


@breaks("event.no-time-line", lenient=(0.0, 107000))
def takes_time_between_events_without_time_line(acl):
    events = [ok(acl.rt.create_event_with_flag(0x1)) for _ in range(2)]
    for event in events:
        ok(acl.rt.record_event(event, 0))
    ok(acl.rt.synchronize_stream(0))
    return acl.rt.event_elapsed_time(*events)


@breaks("event.bad-reset", lenient=107000)
def resets_an_event_of_create_event(acl):
    event = ok(acl.rt.create_event())
    ok(acl.rt.record_event(event, 0))
    return acl.rt.reset_event(event, 0)


@breaks("event.bad-reset", lenient=107000)
def resets_an_event_without_sync(acl):
    event = ok(acl.rt.create_event_with_flag(0x8))
    ok(acl.rt.record_event(event, 0))
    return acl.rt.reset_event(event, 0)


@breaks("event.bad-reset", lenient=107000)
def resets_an_event_of_create_event_ex(acl):
    event = ok(acl.rt.create_event_ex_with_flag(0x1))
    ok(acl.rt.record_event(event, 0))
    return acl.rt.reset_event(event, 0)


@breaks("event.bad-query", lenient=(0, 107000))
def queries_an_event_of_create_event_ex(acl):
    event = ok(acl.rt.create_event_ex_with_flag(0x1))
    ok(acl.rt.record_event(event, 0))
    return acl.rt.query_event(event)


@breaks("event.no-sync", lenient=107000)
def has_a_stream_wait_for_an_event_that_only_takes_time(acl):
    event = ok(acl.rt.create_event_with_flag(0x8))
    ok(acl.rt.record_event(event, 0))
    return acl.rt.stream_wait_event(ok(acl.rt.create_stream()), event)


# -- memory ---------------------------------------------------------------------------------------


@breaks("memory.malloc-in-run", lenient=None)
def mallocs_after_the_load(acl):
    ascend_simulator.freeze()
    return acl.rt.malloc(64, 0)


@breaks("memory.bad-free", lenient=107000)
def frees_twice(acl):
    ptr = ok(acl.rt.malloc(64, 0))
    ok(acl.rt.free(ptr))
    return acl.rt.free(ptr)


@breaks("memory.bad-free", lenient=107000)
def frees_an_inner_address(acl):
    return acl.rt.free(ok(acl.rt.malloc(128, 0)) + 64)


@breaks("memory.bad-free", lenient=107000)
def frees_pinned_memory_as_device_memory(acl):
    return acl.rt.free(ok(acl.rt.malloc_host(64)))


@breaks("memory.bad-free-host", lenient=107000)
def frees_device_memory_as_pinned_memory(acl):
    return acl.rt.free_host(ok(acl.rt.malloc(64, 0)))


@breaks("memory.free-while-in-use")
def frees_what_a_stream_writes(acl):
    ptr = ok(acl.rt.malloc(64, 0))
    ok(acl.rt.memset_async(ptr, 64, 0, 64, 0))
    return acl.rt.free(ptr)


@breaks("memory.free-while-in-use")
def frees_pinned_memory_that_a_stream_reads(acl):
    device, pinned = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc_host(64))
    ok(acl.rt.memcpy_async(device, 64, pinned, 64, H2D, 0))
    return acl.rt.free_host(pinned)


@breaks("memory.free-while-in-use")
def unregisters_what_a_stream_reads(acl):
    array = pages()
    host = array.ctypes.data
    device = ok(acl.rt.malloc(64, 0))
    ok(acl.rt.host_register_v2(host, 64, 0x10000000))
    ok(acl.rt.memcpy_async(device, 64, host, 64, H2D, 0))
    return acl.rt.host_unregister(host)


@breaks("memory.free-while-held")
def frees_memory_of_a_model(acl):
    ptr = ok(acl.rt.malloc(64, 0))
    current().memory.hold(ptr, 64, "model 0 (weights)")
    return acl.rt.free(ptr)


@breaks("memory.red-zone")
def writes_behind_pinned_memory(acl):
    ptr = ok(acl.rt.malloc_host(100))
    ctypes.memset(ptr, 0, 101)
    return acl.rt.free_host(ptr)


@breaks("memory.red-zone")
def writes_before_pinned_memory(acl):
    ptr = ok(acl.rt.malloc_host(100))
    ctypes.memset(ptr - 1, 0, 1)
    return acl.rt.free_host(ptr)


@breaks("memory.registered-twice", lenient=(0, 107000))
def registers_overlapping_memory(acl):
    array = pages(2)
    ok(acl.rt.host_register(array.ctypes.data, 4097, 0))
    return acl.rt.host_register(array.ctypes.data + 4096, 64, 0)


@breaks("memory.registered-twice", lenient=(0, 107000))
def registers_pinned_memory(acl):
    return acl.rt.host_register(ok(acl.rt.malloc_host(64)), 64, 0)


@breaks("memory.registered-unaligned", lenient=107000)
def registers_memory_from_the_middle_of_a_page(acl):
    return acl.rt.host_register_v2(pages().ctypes.data + 64, 64, 0x10000000)


@breaks("memcpy.mapped-address")
def copies_to_the_devices_address_of_mapped_memory(acl):
    array = pages()
    alias = ok(acl.rt.host_register(array.ctypes.data, 4096, 0))
    return acl.rt.memset(alias, 64, 1, 64)


@breaks("memory.bad-unregister", lenient=107000)
def unregisters_what_is_not_registered(acl):
    return acl.rt.host_unregister(ok(acl.rt.malloc_host(64)))


@breaks("memory.device-for-host", lenient=(0, 107000))
def registers_device_memory(acl):
    return acl.rt.host_register(ok(acl.rt.malloc(64, 0)), 64, 0)


@breaks("memory.device-for-host", lenient=(0, 107000))
def registers_memory_where_no_program_has_any(acl):
    return acl.rt.host_register(0x1000, 4096, 0)


@breaks("memory.device-for-host", lenient=b"")
def reads_device_memory_as_host_memory(acl):
    return acl.util.ptr_to_bytes(ok(acl.rt.malloc(64, 0)), 64)


@breaks("memory.host-for-device", lenient=107000)
def flushes_host_memory(acl):
    return acl.rt.mem_flush(ok(acl.rt.malloc_host(64)), 64)


@breaks("memory.host-for-device", lenient=107000)
def flushes_pageable_memory(acl):
    return acl.rt.mem_flush(np.zeros(64).ctypes.data, 64)


@breaks("memory.unknown", lenient=107000)
def copies_from_an_address_that_nobody_gave(acl):
    return acl.rt.memcpy(ok(acl.rt.malloc(64, 0)), 64, 0x40, 64, H2D)


@breaks("memory.unknown", lenient=107000)
def sets_memory_between_blocks(acl):
    return acl.rt.memset(ok(acl.rt.malloc(64, 0)) + MIB, 64, 0, 64)


@breaks("memory.use-after-free", lenient=107000)
def copies_to_freed_memory(acl):
    device, pinned = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc_host(64))
    ok(acl.rt.free(device))
    ok(acl.rt.malloc(64, 0))
    return acl.rt.memcpy(device, 64, pinned, 64, H2D)


@breaks("memory.use-after-free", lenient=107000)
def copies_from_freed_pinned_memory(acl):
    device, pinned = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc_host(64))
    ok(acl.rt.free_host(pinned))
    ok(acl.rt.malloc_host(64))
    return acl.rt.memcpy(device, 64, pinned, 64, H2D)


@breaks("memory.use-after-free")
def writes_pinned_memory_after_it_was_freed(acl):
    pinned = ok(acl.rt.malloc_host(64))
    ok(acl.rt.free_host(pinned))
    ctypes.memset(pinned, 0, 1)
    ok(acl.rt.reset_device(0))
    return acl.finalize()


@breaks("memory.beyond-block", lenient=107000)
def copies_a_byte_beyond_the_target(acl):
    device, pinned = ok(acl.rt.malloc(63, 0)), ok(acl.rt.malloc_host(64))
    return acl.rt.memcpy(device, 64, pinned, 64, H2D)


@breaks("memory.beyond-block", lenient=107000)
def copies_a_byte_beyond_the_source(acl):
    device, pinned = ok(acl.rt.malloc(128, 0)), ok(acl.rt.malloc_host(128))
    return acl.rt.memcpy_async(pinned, 128, device + 64, 65, D2H, 0)


@breaks("memory.beyond-block", lenient=107000)
def copies_from_pageable_memory_into_registered_memory_behind_it(acl):
    device, array = ok(acl.rt.malloc(8192, 0)), pages(2)
    ok(acl.rt.host_register_v2(array.ctypes.data + 4096, 4096, 0x10000000))
    return acl.rt.memcpy(device, 8192, array.ctypes.data, 4097, H2D)


@breaks("memory.beyond-block", lenient=b"")
def reads_beyond_the_memory_of_the_host(acl):
    return acl.util.ptr_to_bytes(pages().ctypes.data, -1)


@breaks("memory.beyond-block", lenient=None)
def copies_a_byte_beyond_the_bytes_that_were_given(acl):
    device, given = ok(acl.rt.malloc(64, 0)), bytes(range(63))
    return acl.rt.memcpy(device, 64, acl.util.bytes_to_ptr(given), 64, H2D)


@breaks("memory.beyond-block", lenient=(0, 145006))
def loads_a_byte_more_than_the_bytes_that_were_given(acl, tmp_path):
    given = Path(static_om(tmp_path)).read_bytes()
    return acl.mdl.load_from_mem(acl.util.bytes_to_ptr(given), len(given) + 1)


@breaks("memory.busy")
def reads_what_a_stream_still_writes(acl):
    device, pinned = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc_host(64))
    ok(acl.rt.memset_async(device, 64, 1, 64, 0))
    return acl.rt.memcpy(pinned, 64, device, 64, D2H)


@breaks("memory.busy")
def overwrites_what_a_stream_still_reads(acl):
    device, pinned = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc_host(64))
    ok(acl.rt.memcpy_async(pinned, 64, device, 64, D2H, 0))
    return acl.rt.memset(device, 64, 0, 64)


@breaks("memory.other-device")
def copies_to_another_device(acl):
    device, pinned = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc_host(64))
    ok(acl.rt.set_device(1))
    return acl.rt.memcpy(device, 64, pinned, 64, H2D)


@breaks("memory.other-device")
def executes_on_memory_of_another_device(acl, tmp_path):
    loaded, home = Loaded(acl, static_om(tmp_path)), ok(acl.rt.get_context())
    ok(acl.rt.set_device(1))
    there = ok(acl.rt.malloc(64, 0))
    ok(acl.rt.set_context(home))
    ok(acl.update_data_buffer(loaded.inputs.handles[0], there, 32))
    return loaded.execute()


@breaks("memory.other-device", lenient=None)
def exports_memory_of_another_device(acl):
    device = ok(acl.rt.malloc(4096, 0))
    ok(acl.rt.set_device(1))
    return acl.rt.ipc_mem_get_export_key(device, 4096, 65, 1)


# -- copies ---------------------------------------------------------------------------------------


@breaks("memcpy.kind")
def copies_in_the_other_direction(acl):
    device, pinned = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc_host(64))
    return acl.rt.memcpy(device, 64, pinned, 64, D2H)


@breaks("memcpy.unaligned")
def copies_to_an_unaligned_address(acl):
    device, pinned = ok(acl.rt.malloc(128, 0)), ok(acl.rt.malloc_host(64))
    return acl.rt.memcpy_async(device + 32, 64, pinned, 64, H2D, 0)


@breaks("memcpy.unaligned")
def copies_from_an_unaligned_address(acl):
    device, pinned = ok(acl.rt.malloc(128, 0)), ok(acl.rt.malloc_host(64))
    return acl.rt.memcpy_async(pinned, 64, device + 32, 64, D2H, 0)


@breaks("memcpy.overlap")
def copies_onto_itself(acl):
    device = ok(acl.rt.malloc(192, 0))
    return acl.rt.memcpy(device + 64, 128, device, 65, D2D)


@breaks("memcpy.pageable-async")
def copies_pageable_memory_behind(acl):
    device, array = ok(acl.rt.malloc(64, 0)), np.zeros(128, np.uint8)
    aligned = array.ctypes.data + -array.ctypes.data % 64
    return acl.rt.memcpy_async(device, 64, aligned, 64, H2D, 0)


@breaks("memcpy.pageable-async")
def fills_pageable_memory_behind(acl):
    array = np.zeros(64, np.uint8)
    return acl.rt.memset_async(array.ctypes.data, 64, 1, 64, 0)


@breaks("memcpy.source-changed")
def changes_the_source_of_a_queued_copy(acl):
    device, pinned = ok(acl.rt.malloc(64, 0)), ok(acl.rt.malloc_host(64))
    blocked = Blocked()
    ok(acl.rt.memcpy_async(device, 64, pinned, 64, H2D, 0))
    fill(pinned + 63, b"x")
    blocked.release()
    return acl.rt.synchronize_stream(0)


# -- util -----------------------------------------------------------------------------------------


@breaks("util.deprecated", lenient=None)
def uses_numpy_to_ptr(acl):
    return acl.util.numpy_to_ptr(np.zeros(4))


@breaks("util.deprecated", lenient=None)
def uses_ptr_to_numpy(acl):
    return acl.util.ptr_to_numpy(ok(acl.rt.malloc_host(64)), (16,), 11)


@breaks("util.owner-dropped")
def copies_from_bytes_that_are_gone(acl):
    device = ok(acl.rt.malloc(64, 0))
    ptr = acl.util.bytes_to_ptr(bytes(range(64)))
    return acl.rt.memcpy(device, 64, ptr, 64, H2D)


@breaks("util.owner-dropped")
def copies_from_an_array_that_is_gone(acl):
    device = ok(acl.rt.malloc(64, 0))
    ptr, _ = acl.util.numpy_contiguous_to_ptr(np.zeros((4, 16), np.uint8)[1:])
    del _
    return acl.rt.memcpy(device, 48, ptr, 48, H2D)


@breaks("util.owner-dropped", lenient=bytes(range(64)))
def reads_bytes_that_are_gone(acl):
    return acl.util.ptr_to_bytes(acl.util.bytes_to_ptr(bytes(range(64))), 64)


@breaks("util.bytes-written")
def copies_into_bytes(acl):
    device = ok(acl.rt.malloc(64, 0))
    ptr = acl.util.bytes_to_ptr(kept := bytes(64))
    return acl.rt.memcpy(ptr, len(kept), device, 64, D2H)


# -------------------------------------------------------------------------------------------------

ALL = [
    pytest.param(rule, scenario, lenient, id=f"{rule}: {scenario.__name__}")
    for rule, entries in SCENARIOS.items()
    for scenario, lenient in entries
]
ROOMS = ("process", "device", "context", "stream", "event", "memory", "memcpy", "util", "prof")
TESTED_APART = {
    "process.not-finalized",  # at the end of a process, test_exit_report.py
    "process.forked",  # in a process of its own, test_environment.py
    "util.not-contiguous",  # always with another caution, test_util.py
}


def test_a_rule_is_declared_once():
    with pytest.raises(ValueError, match=r"stream\.race"):
        violations.declare("stream.race", "Again.")


def play(scenario, acl, tmp_path):
    takes_path = "tmp_path" in scenario.__code__.co_varnames[: scenario.__code__.co_argcount]
    return scenario(acl, tmp_path) if takes_path else scenario(acl)


def test_every_rule_of_these_packages_has_a_scenario():
    rules = {rule for rule in RULES if rule.partition(".")[0] in ROOMS}
    assert rules == set(SCENARIOS) | TESTED_APART


@pytest.mark.brute_force
@pytest.mark.parametrize(("rule", "scenario", "lenient"), ALL)
def test_strict_mode_raises(started, tmp_path, rule, scenario, lenient):
    acl = started(mode="strict", devices=2)
    expected = SimulatorWarning if RULES[rule].caution else SimulatorViolation
    with pytest.raises(expected) as raised:
        play(scenario, acl, tmp_path)
    assert str(raised.value).startswith(f"[{rule}] ")
    assert ascend_simulator.report().broken == {rule: 1}
    assert isinstance(raised.value, AssertionError | UserWarning)


@pytest.mark.brute_force
@pytest.mark.parametrize(("rule", "scenario", "lenient"), ALL)
def test_lenient_mode_counts_and_continues_as_a_device(started, tmp_path, rule, scenario, lenient):
    acl = started(mode="lenient", devices=2)
    with pytest.warns(SimulatorWarning) as warned:
        answer = play(scenario, acl, tmp_path)
    assert [str(one.message).split("]")[0] for one in warned] == [f"[{rule}"]
    assert ascend_simulator.report().broken == {rule: 1}
    if lenient is not None:
        assert answer == lenient


@pytest.mark.brute_force
def test_every_break_is_counted_until_the_process_ends(started):
    acl = started(mode="lenient", devices=2)
    with pytest.warns(SimulatorWarning):
        assert [acl.rt.free(0x1234_0000) for _ in range(3)] == [107000] * 3
    assert ascend_simulator.report().broken == {"memory.bad-free": 3}
    started(mode="lenient", devices=2)
    assert ascend_simulator.report().broken == {}
