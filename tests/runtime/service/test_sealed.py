"""Files in memory that two processes map."""

import errno
import os

import pytest

from ge_runtime.service import sealed
from ge_runtime.service.sealed import map_sealed, sealed_file

SIZE = 1 << 20


@pytest.fixture
def file():
    descriptor = sealed_file("test", SIZE)
    yield descriptor
    os.close(descriptor)


def overcommit(monkeypatch, tmp_path, mode):
    setting = tmp_path / "overcommit_memory"
    setting.write_text(f"{mode}\n")
    monkeypatch.setattr(sealed, "_OVERCOMMIT", setting)


@pytest.mark.parametrize(("mode", "there"), [("0", False), ("1", False), ("2", True)])
def test_pages_come_as_they_are_touched_unless_the_kernel_may_run_out(
    file, monkeypatch, tmp_path, mode, there
):
    overcommit(monkeypatch, tmp_path, mode)
    map_sealed(file, SIZE, written=True).close()
    assert os.fstat(file).st_blocks == 0
    map_sealed(file, SIZE).close()
    assert (os.fstat(file).st_blocks * 512 >= SIZE) == there


def test_pages_that_are_not_to_be_had_are_told_before_they_are_touched(file, monkeypatch, tmp_path):
    def refuse(descriptor, start, nbytes):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    overcommit(monkeypatch, tmp_path, "2")
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(MemoryError, match="No space left on device"):
        map_sealed(file, SIZE)


def test_system_without_the_setting_gives_pages_as_they_are_touched(file, monkeypatch, tmp_path):
    monkeypatch.setattr(sealed, "_OVERCOMMIT", tmp_path / "nothing")
    map_sealed(file, SIZE).close()
    assert os.fstat(file).st_blocks == 0
