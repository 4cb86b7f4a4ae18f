"""POSIX shared memory: keys, bounds, copies, and objects truncated by their client."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.regions import object_file, shared_object

from reference_server.core.errors import Code, ServerError
from reference_server.core.metadata import SystemRegion
from reference_server.shared_memory import region
from reference_server.shared_memory.region import InputBuffers, SystemMemory

PAGE = os.sysconf("SC_PAGE_SIZE")
CONTENT = bytes(range(256)) * (2 * PAGE // 256)
LARGE = 1 << 20


@pytest.fixture
def key():
    with shared_object(CONTENT) as made:
        yield made


def opened(key, byte_size=2 * PAGE, offset=0):
    return SystemMemory(SystemRegion("r", key, offset, byte_size), InputBuffers())


def refusal(*arguments, **more):
    with pytest.raises(ServerError) as caught:
        opened(*arguments, **more)
    return caught.value.code, caught.value.message


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


# ------------------------------------------------------------------------------------------ keys


@pytest.mark.parametrize("slashes", ["", "/", "//"])
def test_a_key_may_have_leading_slashes(key, slashes):
    memory = opened(slashes + key.lstrip("/"))
    assert bytes(memory.read(0, 4)) == CONTENT[:4]
    memory.close()


@pytest.mark.parametrize(
    "key",
    [
        *("", "/", ".", "..", "/..", "//", "a/b", "/./x", "../shm/x", "/../../etc/hostname"),
        *("/dev/shm/x", "x\0y", "x" * 256, "\ud800", "/surely_not_there"),
    ],
)
def test_invalid_keys_are_rejected(key):
    said = f"Unable to open shared memory region: '{key}'"
    assert refusal(key) == (Code.INTERNAL, said)


def test_links_are_not_followed(key, tmp_path):
    target = tmp_path / "secret"
    target.write_bytes(CONTENT)
    link = object_file(key + "_link")
    link.symlink_to(target)
    try:
        assert refusal(key + "_link")[0] is Code.INTERNAL
    finally:
        link.unlink()


def test_folders_and_pipes_are_rejected(key):
    folder, pipe = object_file(key + "_folder"), object_file(key + "_pipe")
    folder.mkdir()
    os.mkfifo(pipe)
    try:
        assert refusal(folder.name)[0] is Code.INTERNAL
        assert refusal(pipe.name, byte_size=1)[1].endswith("invalid args")
    finally:
        folder.rmdir()
        pipe.unlink()


# ---------------------------------------------------------------------------------------- bounds

REFUSED = "failed to register shared memory region 'r': "
UNMAPPED = REFUSED + "unable to process address spaceInvalid argument"
BOUNDS = {
    "too long": (len(CONTENT) + 1, 0, REFUSED + "invalid args"),
    "too long from a page on": (PAGE + 1, PAGE, REFUSED + "invalid args"),
    "behind the end": (1, len(CONTENT), REFUSED + "invalid args"),
    "as long as can be": (2**64 - 1, 0, REFUSED + "invalid args"),
    "as far as can be": (1, 2**64 - 1, REFUSED + "invalid args"),
    "empty": (0, 0, UNMAPPED),
    "empty at a page": (0, PAGE, UNMAPPED),
    "not at a page": (16, 16, UNMAPPED),
}


@pytest.mark.brute_force
@pytest.mark.parametrize(("byte_size", "offset", "said"), BOUNDS.values(), ids=BOUNDS)
def test_a_region_must_be_within_its_object(key, byte_size, offset, said):
    before = open_files()
    assert refusal(key, byte_size, offset) == (Code.INVALID_ARG, said)
    assert open_files() <= before  # other tests may have closed files


# --------------------------------------------------------------------------- reading and writing


@given(offset=st.integers(0, len(CONTENT)), size=st.integers(0, len(CONTENT)), page=st.booleans())
@pytest.mark.parametrize("guarded_bytes", [1, 1 << 19], ids=["guarded", "by the kernel"])
def test_reading_returns_the_bytes_at_the_offset(guarded_bytes, offset, size, page):
    start = PAGE if page else 0
    size = min(size, len(CONTENT) - start - offset)
    if size < 0:
        return
    with pytest.MonkeyPatch.context() as patch, shared_object(CONTENT) as key:
        patch.setattr(region, "_GUARDED_BYTES", guarded_bytes)
        memory = opened(key, len(CONTENT) - start, start)
        copy = memory.read(offset, size)
        assert bytes(copy) == CONTENT[start + offset : start + offset + size]
        memory.write(offset, memoryview(bytes(size)))
        expected = bytearray(CONTENT)
        expected[start + offset : start + offset + size] = bytes(size)
        assert object_file(key).read_bytes() == expected
        memory.close()


@pytest.mark.parametrize("size", [16, LARGE])
def test_a_copy_is_independent_of_the_object(size):
    with shared_object(bytes(size)) as key:
        memory = opened(key, size)
        copy = memory.read(0, size)
        copy[:4] = b"abcd"
        assert object_file(key).read_bytes() == bytes(size)
        memory.write(0, memoryview(b"x" * size))
        memory.close()
    assert bytes(copy) == b"abcd" + bytes(size - 4)


@pytest.mark.brute_force
def test_closing_leaves_no_file_open():
    before = open_files()
    with shared_object(bytes(LARGE)) as key:
        memory = opened(key, LARGE)
        copy = memory.read(0, LARGE)
        memory.close()
        del memory, copy
    assert open_files() <= before  # other tests may have closed files


def test_an_unlinked_object_is_usable_until_it_is_closed(key):
    memory = opened(key)
    object_file(key).unlink()
    assert bytes(memory.read(0, 4)) == CONTENT[:4]
    memory.write(0, memoryview(b"abcd"))
    assert bytes(memory.read(0, 4)) == b"abcd"
    memory.close()


SMALL = 2 * PAGE
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


def use_refusal(*arguments):
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
    assert use_refusal(memory, use, size) == (
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
    use_refusal(memory, use, PAGE, refused_at)


@SIZES
@USES
def test_an_object_that_has_grown_again_is_usable(memory, use, size):
    memory, key = memory
    os.truncate(object_file(key), 0)
    use_refusal(memory, use, size)
    object_file(key).write_bytes(b"c" * size)
    used(memory, use, size)
    assert bytes(memory.read(0, size)) == (b"c" if use == "read" else b"b") * size
    assert object_file(key).read_bytes() == bytes(memory.read(0, size))


@pytest.mark.parametrize("size", [LARGE])
@USES
def test_a_region_is_an_error_until_its_object_is_complete(memory, use, size):
    memory, key = memory
    os.truncate(object_file(key), 0)
    use_refusal(memory, use, size)
    os.truncate(object_file(key), size // 2)
    assert f"has {size // 2} bytes, expected at least {size}" in use_refusal(memory, use, size // 2)


@pytest.mark.parametrize("size", [LARGE])
def test_an_object_truncated_and_extended_within_a_copy_is_an_error(memory, monkeypatch, size):
    memory, key = memory
    lose = region.GuardedMapping.lose

    def grow(mapping):
        os.truncate(object_file(key), size)
        return lose(mapping)

    monkeypatch.setattr(region.GuardedMapping, "lose", grow)
    os.truncate(object_file(key), 0)
    assert "was truncated while in use, or no memory is left" in use_refusal(memory, "read", size)
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
