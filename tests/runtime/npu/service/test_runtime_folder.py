import os

import pytest

from ge_runtime.errors import ServiceFault
from ge_runtime.npu.service.launcher import RuntimeFolder, runtime_folder


def test_folder_is_the_user_s_runtime_folder_or_in_tmp(tmp_path):
    assert runtime_folder({"XDG_RUNTIME_DIR": str(tmp_path)}, 7) == tmp_path / "ge_runtime"
    for environment in ({}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "/no/such/place"}):
        assert str(runtime_folder(environment, 7)) == "/tmp/ge_runtime-7"


def test_folder_is_made_for_the_user_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with RuntimeFolder.open() as folder:
        assert folder.path == tmp_path / "ge_runtime"
        assert folder.path.stat().st_mode & 0o777 == 0o700
    with RuntimeFolder.open() as again:
        assert again.devices() == []


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o755, 0o777])
def test_folder_that_others_may_enter_is_refused(tmp_path, mode):
    path = tmp_path / "ge_runtime"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(ServiceFault, match=rf"with mode 0{mode:o}, expected one of user"):
        RuntimeFolder.open(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_folder_of_another_user_is_refused(tmp_path):
    path = tmp_path / "ge_runtime"
    path.mkdir(0o700)
    os.chown(path, 12345, 12345)
    with pytest.raises(ServiceFault, match="found a folder of user 12345"):
        RuntimeFolder.open(path)


def test_link_to_a_folder_is_refused(tmp_path):
    real = tmp_path / "real"
    real.mkdir(0o700)
    (tmp_path / "ge_runtime").symlink_to(real)
    with pytest.raises(ServiceFault, match="expected a folder for the device service"):
        RuntimeFolder.open(tmp_path / "ge_runtime")


def test_file_in_the_folder_s_place_is_refused(tmp_path):
    (tmp_path / "ge_runtime").write_text("")
    with pytest.raises(ServiceFault, match="XDG_RUNTIME_DIR can name another place"):
        RuntimeFolder.open(tmp_path / "ge_runtime")


def test_address_is_short_however_long_the_path_is(tmp_path):
    path = tmp_path / ("x" * 120)
    path.mkdir()
    with RuntimeFolder.open(path / "ge_runtime") as folder:
        assert len(folder.address("npu:0")) < 50
        assert folder.file("npu:0", "log") == path / "ge_runtime" / "npu-0.log"
