"""Objects truncated by their client: copies fail with an error, and the process survives."""

import os
import random
import signal
import subprocess
import sys
import threading

import pytest
from server.support.regions import object_file, shared_object

from reference_server.core.errors import Code, ServerError
from reference_server.core.metadata import SystemRegion
from reference_server.shared_memory import region
from reference_server.shared_memory.region import InputBuffers, SystemMemory

PAGE = os.sysconf("SC_PAGE_SIZE")
SMALL, LARGE = 2 * PAGE, 1 << 20
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE])
USES = pytest.mark.parametrize("use", ["read", "write"])


@pytest.fixture
def memory(size):
    with shared_object(b"a" * size) as key:
        memory = SystemMemory(SystemRegion("r", key, 0, size), InputBuffers())
        yield memory, key
        memory.close()


def used(memory, use, size, offset=0):
    if use == "read":
        return bytes(memory.read(offset, size))
    memory.write(offset, memoryview(b"b" * size))
    return None


def refusal(*arguments):
    with pytest.raises(ServerError) as caught:
        used(*arguments)
    assert caught.value.code is Code.INVALID_ARG
    return caught.value.message


@SIZES
@USES
@pytest.mark.parametrize("left", [0, PAGE, -1], ids=["nothing", "a page", "all but a byte"])
def test_a_truncated_part_is_an_error_and_stays_one(memory, use, size, left):
    memory, key = memory
    left %= size
    os.truncate(object_file(key), left)
    assert refusal(memory, use, size) == (
        f"shared memory region 'r' cannot be used: its object '{key}' has {left} bytes, expected "
        f"at least {size}"
    )
    assert object_file(key).stat().st_size == left


@SIZES
@USES
def test_the_remaining_part_is_usable(memory, use, size):
    memory, key = memory
    refused_at = size - PAGE
    os.truncate(object_file(key), refused_at)
    used(memory, use, refused_at)
    refusal(memory, use, PAGE, refused_at)


@SIZES
@USES
def test_an_object_that_has_grown_again_is_usable(memory, use, size):
    memory, key = memory
    os.truncate(object_file(key), 0)
    refusal(memory, use, size)
    object_file(key).write_bytes(b"c" * size)
    used(memory, use, size)
    assert bytes(memory.read(0, size)) == (b"c" if use == "read" else b"b") * size
    assert object_file(key).read_bytes() == bytes(memory.read(0, size))


@pytest.mark.parametrize("size", [LARGE])
@USES
def test_a_region_is_an_error_until_its_object_is_complete(memory, use, size):
    memory, key = memory
    os.truncate(object_file(key), 0)
    refusal(memory, use, size)
    os.truncate(object_file(key), size // 2)
    assert f"has {size // 2} bytes, expected at least {size}" in refusal(memory, use, size // 2)


@pytest.mark.parametrize("size", [LARGE])
def test_an_object_truncated_and_extended_within_a_copy_is_an_error(memory, monkeypatch, size):
    memory, key = memory
    lose = region.GuardedMapping.lose

    def grow(mapping):
        os.truncate(object_file(key), size)
        return lose(mapping)

    monkeypatch.setattr(region.GuardedMapping, "lose", grow)
    os.truncate(object_file(key), 0)
    assert "was truncated while in use, or no memory is left" in refusal(memory, "read", size)
    assert bytes(memory.read(0, size)) == bytes(size)


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_copies_of_a_changing_object_are_complete_or_errors(memory, size):
    memory, key = memory
    done = threading.Event()

    def cut():
        chance = random.Random(1)
        path = object_file(key)
        while not done.is_set():
            os.truncate(path, chance.randrange(size))
            os.truncate(path, size)

    outcomes = {"whole": 0, "refused": 0}
    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        for tries in range(100_000):
            try:
                used(memory, "write", size)
                assert set(used(memory, "read", size)) <= {0, ord("a"), ord("b")}
                outcomes["whole"] += 1
            except ServerError:
                outcomes["refused"] += 1
            if tries > 200 and outcomes["refused"]:  # the other thread may not have run yet
                break
    finally:
        done.set()
        cutter.join()
    assert outcomes["refused"]
    os.truncate(object_file(key), size)
    used(memory, "write", size)
    assert used(memory, "read", size) == b"b" * size


# ------------------------------------------------------------------------- signals of others

UNGUARDED = """
import mmap, os, sys
{before}
from reference_server.core.metadata import SystemRegion
from reference_server.shared_memory.region import InputBuffers
from reference_server.shared_memory.region import SystemMemory
key = sys.argv[1]
memory = SystemMemory(SystemRegion("r", key, 0, 1 << 20), InputBuffers())
memory.read(0, 1 << 20)
{then}
descriptor = os.open("/dev/shm" + key, os.O_RDWR)
pages = mmap.mmap(descriptor, 1 << 20)
os.truncate(descriptor, 0)
pages[0]
"""


@pytest.mark.brute_force
@pytest.mark.parametrize(
    ("before", "then", "status", "said"),
    [
        ("", "", -signal.SIGBUS, ""),
        ("import faulthandler; faulthandler.enable()", "", -signal.SIGBUS, "Bus error"),
        (
            "",
            "import faulthandler; faulthandler.enable(); os.truncate('/dev/shm' + key, 0)\n"
            "try: memory.read(0, 1 << 20)\n"
            "except Exception: os._exit(7)",
            7,
            "",
        ),
    ],
    ids=["no handler", "a handler before", "a handler since"],
)
def test_other_faults_are_passed_to_the_previous_handler(before, then, status, said):
    script = UNGUARDED.format(before=before, then=then)
    with shared_object(bytes(LARGE)) as key:
        run = subprocess.run(
            [sys.executable, "-c", script, key], capture_output=True, text=True, timeout=60
        )
    assert run.returncode == status, run.stderr
    assert said in run.stderr
