"""Device services in folders of their own; whatever a test leaves running is ended."""

import pytest
from runtime.support.services import Services


@pytest.fixture
def services(tmp_path, monkeypatch):
    """The device services below a folder of this test."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with Services(tmp_path / "ge_runtime") as there:
        yield there


@pytest.fixture(scope="module")
def shared_services(tmp_path_factory):
    """The same for all tests of a module: services start once."""
    folder = tmp_path_factory.mktemp("services")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        with Services(folder / "ge_runtime") as there:
            yield there
