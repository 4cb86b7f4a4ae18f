"""POSIX shared memory objects: opened by key, accessed within their bounds."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.support.regions import object_file, shared_object

from reference_server.core.errors import Code, ServerError
from reference_server.core.metadata import SystemRegion
from reference_server.shared_memory import region as module
from reference_server.shared_memory.region import InputBuffers, SystemMemory

PAGE = 4096
CONTENT = bytes(range(256)) * 32  # two pages
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


def test_a_key_with_a_folder_is_rejected(key):
    assert refusal(f"/../shm{key}")[0] is Code.INTERNAL


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


def test_an_object_may_be_shorter_than_a_page():
    with shared_object(b"abc") as key:
        memory = opened(key, 3)
        assert bytes(memory.read(1, 2)) == b"bc"
        memory.close()


# --------------------------------------------------------------------------- reading and writing


@given(offset=st.integers(0, len(CONTENT)), size=st.integers(0, len(CONTENT)), page=st.booleans())
@pytest.mark.parametrize("guarded_bytes", [1, 1 << 19], ids=["guarded", "by the kernel"])
def test_reading_returns_the_bytes_at_the_offset(guarded_bytes, offset, size, page):
    start = PAGE if page else 0
    size = min(size, len(CONTENT) - start - offset)
    if size < 0:
        return
    with pytest.MonkeyPatch.context() as patch, shared_object(CONTENT) as key:
        patch.setattr(module, "_GUARDED_BYTES", guarded_bytes)
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
