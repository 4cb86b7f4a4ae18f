"""Device memory shared between processes of one device: keys, permissions and lifetime."""

import os

import pytest
from simulator.support.driving import D2D, Blocked, content, fill, ok
from simulator.support.models import Loaded, breaks, static_om
from simulator.support.neighbour import Neighbour

from ascend_simulator import current, reset_for_tests

PAGE = 4096
KEY = 65
ALLOWED, EVERYONE = 0, 1


@pytest.fixture(scope="module")
def one_neighbour():
    other = Neighbour()
    yield other
    other.close()


@pytest.fixture
def neighbour(one_neighbour):
    """Another process with the same devices, in a new state: device 0 is current."""
    one_neighbour.begin()
    return one_neighbour


@pytest.fixture
def mortal():
    """Another process that the test kills."""
    other = Neighbour()
    other.begin()
    yield other
    other.close()


def exported(acl, nbytes=PAGE, flag=EVERYONE):
    """Address and key of exported memory."""
    ptr = ok(acl.rt.malloc(nbytes, 0))
    return ptr, ok(acl.rt.ipc_mem_get_export_key(ptr, nbytes, KEY, flag))


@pytest.mark.brute_force
def test_two_processes_have_the_same_bytes(acl, neighbour):
    ptr = ok(acl.rt.malloc(2 * PAGE, 0))
    fill(ptr, b"before")
    key = ok(acl.rt.ipc_mem_get_export_key(ptr, PAGE, KEY, EVERYONE))
    assert isinstance(key, str)
    assert len(key) < KEY
    there = ok(neighbour.rt.ipc_mem_import_by_key(key, 0))
    assert neighbour.content(there, 6) == b"before"
    neighbour.fill(there + 100, b"theirs")
    fill(ptr, b"ours..")
    assert content(ptr + 100, 6) == b"theirs"
    assert neighbour.content(there, 6) == b"ours.."
    assert content(ptr + PAGE, PAGE) == b"\x7f" * PAGE  # not exported, and unchanged
    # In the documented order.
    assert neighbour.rt.ipc_mem_close(key) == 0
    ok(acl.rt.ipc_mem_close(key))
    assert content(ptr, 6) == b"ours.."
    ok(acl.rt.free(ptr))
    assert current().live() == []
    assert [neighbour.rt.reset_device(0), neighbour.call("finalize")] == [0, 0]


def test_imported_memory_is_device_memory_and_costs_nothing(acl, neighbour):
    _, key = exported(acl)
    before = neighbour.rt.get_mem_info(1)
    there = ok(neighbour.rt.ipc_mem_import_by_key(key, EVERYONE))
    assert neighbour.rt.get_mem_info(1) == before
    attributes = ok(neighbour.rt.pointer_get_attributes(there))
    assert attributes["location"] == {"id": 0, "type": 1}
    own = ok(neighbour.rt.malloc(PAGE, 0))
    neighbour.fill(own, b"x" * PAGE)
    assert neighbour.rt.memcpy_async(there, PAGE, own, PAGE, D2D, 0) == 0
    assert neighbour.rt.synchronize_stream(0) == 0
    assert neighbour.content(there, PAGE) == b"x" * PAGE
    assert neighbour.rt.memset(there, PAGE, 1, PAGE + 1) == 107000
    assert neighbour.rt.memset(there, PAGE + 1, 1, PAGE + 1) == "memory.beyond-block"


def test_only_processes_that_are_allowed_import(acl, neighbour):
    _, key = exported(acl, flag=ALLOWED)
    pid = ok(neighbour.rt.device_get_bare_tgid())
    assert pid != ok(acl.rt.device_get_bare_tgid()) == os.getpid()
    assert neighbour.rt.ipc_mem_import_by_key(key, 0) == (0, 107000)
    ok(acl.rt.ipc_mem_set_import_pid(key, [os.getppid(), os.getpid()]))
    assert neighbour.rt.ipc_mem_import_by_key(key, 0) == (0, 107000)
    ok(acl.rt.ipc_mem_set_import_pid(key, [pid]))
    ok(neighbour.rt.ipc_mem_import_by_key(key, 0))
    assert neighbour.rt.ipc_mem_set_import_pid(key, [pid]) == 107000  # not the importer's key


@pytest.mark.parametrize("pids", [[], [0], [-1], list(range(1, 300))])
def test_invalid_process_ids_are_refused(acl, pids):
    _, key = exported(acl, flag=ALLOWED)
    assert acl.rt.ipc_mem_set_import_pid(key, pids) == 107000


def test_invalid_exports_are_refused(acl):
    ptr = ok(acl.rt.malloc(PAGE, 0))
    get = acl.rt.ipc_mem_get_export_key
    assert get(0, PAGE, KEY, EVERYONE) == ("", 100000)
    assert get(ptr, PAGE, 64, EVERYONE) == ("", 107000)
    assert get(ptr, PAGE, 1023, EVERYONE) == ("", 107000)
    assert get(ptr, PAGE, KEY, 2) == ("", 107000)
    with pytest.raises(ValueError, match="length: found 1024"):
        get(ptr, PAGE, 1024, EVERYONE)
    with pytest.raises(TypeError):
        acl.rt.ipc_mem_set_import_pid("key", (1,))


@pytest.mark.parametrize("key", ["", "key", "0" * 32, "0" * 64, "z" * 32])
def test_an_unknown_key_is_refused(acl, key):
    assert acl.rt.ipc_mem_import_by_key(key, 0) == (0, 107000)
    assert acl.rt.ipc_mem_close(key) == 107000
    assert acl.rt.ipc_mem_set_import_pid(key, [1]) == 107000


def test_a_key_of_another_file_is_refused(acl, neighbour):
    _, key = exported(acl)
    process, number, place = key[:8], key[8:24], key[24:]
    other = f"{int(number, 16) ^ 1:016x}"
    assert neighbour.rt.ipc_mem_import_by_key(process + other + place, 0) == (0, 107000)
    standard_input = ok(neighbour.rt.device_get_bare_tgid()), 0, 0
    pipe = "{:08x}{:016x}{:08x}".format(*standard_input)
    assert acl.rt.ipc_mem_import_by_key(pipe, 0) == (0, 107000)
    assert "does not refer to shared memory" in acl.get_recent_err_msg()
    ok(neighbour.rt.ipc_mem_import_by_key(key, 0))


def test_a_process_does_not_import_its_own_memory(acl):
    _, key = exported(acl)
    assert acl.rt.ipc_mem_import_by_key(key, 0) == (0, 107000)
    assert acl.rt.ipc_mem_import_by_key(key, 2) == (0, 107000)


def test_a_closed_key_is_refused(acl, neighbour):
    ptr, key = exported(acl)
    ok(acl.rt.ipc_mem_close(key))
    assert acl.rt.ipc_mem_close(key) == 107000
    assert neighbour.rt.ipc_mem_import_by_key(key, 0) == (0, 107000)
    again = ok(acl.rt.ipc_mem_get_export_key(ptr, PAGE, KEY, EVERYONE))
    assert again != key
    ok(neighbour.rt.ipc_mem_import_by_key(again, 0))


@pytest.mark.brute_force
def test_a_key_of_an_ended_process_is_refused_and_uses_are_detected(acl, mortal):
    theirs = ok(mortal.rt.malloc(PAGE, 0))
    key = ok(mortal.rt.ipc_mem_get_export_key(theirs, PAGE, KEY, EVERYONE))
    here = ok(acl.rt.ipc_mem_import_by_key(key, 0))
    ok(acl.rt.memset(here, PAGE, 1, PAGE))
    mortal.kill()
    with breaks("ipc.exporter-gone"):
        acl.rt.memset(here, PAGE, 1, PAGE)
    ok(acl.rt.ipc_mem_close(key))  # the remaining memory is still released
    assert acl.rt.ipc_mem_import_by_key(key, 0) == (0, 107000)


def test_uses_after_the_exporter_closed_are_detected(acl, neighbour):
    ptr, key = exported(acl)
    there = ok(neighbour.rt.ipc_mem_import_by_key(key, 0))
    with breaks("ipc.closed-before-importers"):
        acl.rt.ipc_mem_close(key)
    with breaks("memory.free-while-held"):
        acl.rt.free(ptr)
    assert neighbour.rt.memset(there, PAGE, 1, PAGE) == 0
    current().memory.discard(current().memory.find(ptr))  # as the reset of a device does
    assert neighbour.rt.memset(there, PAGE, 1, PAGE) == "ipc.exporter-gone"


@pytest.mark.brute_force
def test_an_ended_importer_does_not_count(acl, mortal):
    ptr, key = exported(acl)
    ok(mortal.rt.ipc_mem_import_by_key(key, 0))
    mortal.kill()
    ok(acl.rt.ipc_mem_close(key))
    ok(acl.rt.free(ptr))


def test_a_block_is_exported_and_imported_once_at_a_time(acl, neighbour):
    ptr, key = exported(acl)
    with breaks("ipc.twice"):
        acl.rt.ipc_mem_get_export_key(ptr, PAGE, KEY, EVERYONE)
    ok(neighbour.rt.ipc_mem_import_by_key(key, 0))
    assert neighbour.rt.ipc_mem_import_by_key(key, 0) == "ipc.twice"
    assert neighbour.rt.ipc_mem_close(key) == 0
    ok(neighbour.rt.ipc_mem_import_by_key(key, 0))


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(64, PAGE), (0, PAGE - 64), (0, 0)], ids=["inside", "short", "none"]
)
def test_whole_pages_are_exported_from_the_start_of_their_block(acl, offset, nbytes):
    ptr = ok(acl.rt.malloc(2 * PAGE, 0))
    with breaks("ipc.part-of-a-block"):
        acl.rt.ipc_mem_get_export_key(ptr + offset, nbytes, KEY, EVERYONE)


def test_imported_memory_is_not_freed_and_not_exported(acl, neighbour):
    _, key = exported(acl)
    there = ok(neighbour.rt.ipc_mem_import_by_key(key, 0))
    assert neighbour.rt.free(there) == "memory.bad-free"
    assert neighbour.rt.ipc_mem_get_export_key(there, PAGE, KEY, EVERYONE) == ("", 107000)


def test_imported_memory_in_use_is_not_closed(acl, neighbour):
    theirs = ok(neighbour.rt.malloc(PAGE, 0))
    key = ok(neighbour.rt.ipc_mem_get_export_key(theirs, PAGE, KEY, EVERYONE))
    here = ok(acl.rt.ipc_mem_import_by_key(key, 0))
    ok(acl.rt.memset_async(here, PAGE, 1, PAGE, 0))
    with breaks("memory.free-while-in-use"):
        acl.rt.ipc_mem_close(key)
    ok(acl.rt.synchronize_stream(0))
    current().memory.hold(here, PAGE, "model 0 (weights)")
    with breaks("memory.free-while-held"):
        acl.rt.ipc_mem_close(key)


def test_leftover_keys_are_reported_at_finalize(acl, neighbour):
    theirs = ok(neighbour.rt.malloc(PAGE, 0))
    key = ok(neighbour.rt.ipc_mem_get_export_key(theirs, PAGE, KEY, EVERYONE))
    ok(acl.rt.ipc_mem_import_by_key(key, 0))
    exported(acl)
    left = " ".join(current().live())
    assert "key of <device" in left
    assert "<imported" in left
    with breaks("process.finalize-leaks"):
        acl.finalize()


def test_a_reset_device_has_no_shared_memory(acl, neighbour):
    theirs = ok(neighbour.rt.malloc(PAGE, 0))
    imported = ok(neighbour.rt.ipc_mem_get_export_key(theirs, PAGE, KEY, EVERYONE))
    ok(acl.rt.ipc_mem_import_by_key(imported, 0))
    _, given = exported(acl)
    there = ok(neighbour.rt.ipc_mem_import_by_key(given, 0))
    ok(acl.rt.reset_device_force(0))
    assert current().memory.blocks() == []
    assert neighbour.rt.memset(there, PAGE, 1, PAGE) == "ipc.exporter-gone"
    assert neighbour.rt.ipc_mem_close(imported) == 0  # no process uses it any more
    ok(acl.rt.set_device(0))
    ok(acl.rt.ipc_mem_close(given))
    ok(acl.rt.ipc_mem_close(imported))


def test_a_process_that_ends_gives_up_its_memory(acl, neighbour):
    _, key = exported(acl)
    there = ok(neighbour.rt.ipc_mem_import_by_key(key, 0))
    reset_for_tests()
    assert neighbour.rt.memset(there, PAGE, 1, PAGE) == "ipc.exporter-gone"


def test_queued_work_ends_before_its_memory_is_shared(acl):
    ptr = ok(acl.rt.malloc(PAGE, 0))
    blocked = Blocked()
    ok(acl.rt.memset_async(ptr, PAGE, 3, PAGE, 0))
    blocked.release()
    ok(acl.rt.ipc_mem_get_export_key(ptr, PAGE, KEY, EVERYONE))
    assert content(ptr, PAGE) == b"\x03" * PAGE
    with breaks("memory.busy"):  # the host has still not waited for it
        acl.rt.memset(ptr, PAGE, 0, PAGE)


def test_memory_of_another_device_is_not_imported(machine, neighbour):
    acl = machine(devices=2)
    ok(acl.init())
    ok(acl.rt.set_device(1))
    _, key = exported(acl)
    neighbour.begin(devices=2)
    assert neighbour.rt.ipc_mem_import_by_key(key, 1) == (0, 207000)
    assert neighbour.rt.set_device(1) == 0
    ok(neighbour.rt.ipc_mem_import_by_key(key, 0))


def test_devices_are_identified_by_their_physical_id(machine, neighbour):
    acl = machine(devices=2, visible_devices=(1,))
    ok(acl.init())
    ok(acl.rt.set_device(0))  # the second of the machine
    _, key = exported(acl)
    neighbour.begin(devices=2)
    assert neighbour.rt.ipc_mem_import_by_key(key, 0) == (0, 207000)


def test_without_a_context_nothing_is_shared(machine):
    acl = machine()
    ok(acl.init())
    assert acl.rt.ipc_mem_get_export_key(1 << 20, PAGE, KEY, 0) == ("", 107002)
    assert acl.rt.ipc_mem_import_by_key("0" * 32, 0) == (0, 107002)


def test_a_model_may_have_its_weights_in_memory_of_another_process(acl, neighbour, tmp_path):
    path = static_om(tmp_path)
    loaded = Loaded(acl, path)
    work, weights = ok(acl.mdl.query_size(path))
    shared, key = exported(acl)
    assert weights <= PAGE
    model = ok(acl.mdl.load_from_file_with_mem(path, 0, 0, shared, weights))
    there = ok(neighbour.rt.ipc_mem_import_by_key(key, 0))
    theirs = ok(neighbour.mdl.load_from_file_with_mem(path, 0, 0, there, weights))
    assert neighbour.content(there, weights) == content(loaded.weights, weights)
    assert neighbour.rt.ipc_mem_close(key) == "memory.free-while-held"
    assert neighbour.mdl.unload(theirs) == 0
    assert neighbour.rt.ipc_mem_close(key) == 0
    ok(acl.mdl.unload(model))
    assert work > 0


@pytest.mark.parametrize("soc", ["Ascend310", "Ascend310B1"])
def test_some_chips_share_no_memory(started, soc):
    acl = started(soc=soc)
    ptr = ok(acl.rt.malloc(PAGE, 0))
    assert acl.rt.ipc_mem_get_export_key(ptr, PAGE, KEY, EVERYONE) == ("", 207000)
    assert acl.rt.ipc_mem_import_by_key("0" * 32, 0) == (0, 207000)
