"""`ge-runtime serve`: invalid arguments, and the end of its server."""

import contextlib
import signal
import socket

import pytest

from ge_runtime import child_process, cli
from ge_runtime.child_process import cleanup_on_termination, limit_memory
from ge_runtime.cli import serve
from ge_runtime.memory.machine import MemoryLimit

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def ports(monkeypatch):
    """Flags with three free ports."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("", 0))) for _ in range(3)]
        numbers = [own.getsockname()[1] for own in sockets]
    kinds = ("http", "grpc", "metrics")
    return [f"--{kind}-port={number}" for kind, number in zip(kinds, numbers, strict=True)]


@pytest.fixture
def written(monkeypatch):
    """The graphs that were configured; none is executed."""
    files = []
    monkeypatch.setattr(serve, "write_model", lambda file, folder, options: files.append(file))
    monkeypatch.setattr(serve, "_serve", lambda repository, models, ports: models)
    return files


def graphs(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    return [str(folder / name) for name in names]


def test_all_graphs_of_a_folder_are_configured(tmp_path, written, ports):
    graphs(tmp_path, "a.onnx", "b.onnx", "c.txt")
    assert cli.main(["serve", str(tmp_path), *ports]) == ["a", "b"]
    assert [file.name for file in written] == ["a.onnx", "b.onnx"]


def test_graphs_of_one_name_are_refused_before_any_is_executed(tmp_path, written, ports, capsys):
    files = graphs(tmp_path, "a/model.onnx", "b/model.onnx", "c/model.onnx")
    assert cli.main(["serve", *files, *ports]) == 2
    error = capsys.readouterr().err
    assert "found 3 graphs for the model 'model', expected different names of files" in error
    assert all(file in error for file in files)
    assert written == []


def test_a_taken_port_is_refused_before_a_graph_is_executed(tmp_path, written, ports, capsys):
    with socket.create_server(("", int(ports[1].partition("=")[2]))):
        assert cli.main(["serve", *graphs(tmp_path, "a.onnx"), *ports]) == 2
    error = capsys.readouterr().err
    assert "Address already in use; choose another port with --grpc-port" in error
    assert written == []


def test_invalid_ports_and_paths_are_refused(tmp_path, written, ports, capsys):
    for port in ("0", "65536", "http"):
        with pytest.raises(SystemExit, match="2"):
            cli.main(["serve", *graphs(tmp_path, "a.onnx"), f"--http-port={port}"])
        assert "expected 1 to 65535" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    for name, error in (("nothing", "nothing"), ("empty", "a folder without .onnx files")):
        assert cli.main(["serve", str(tmp_path / name), *ports]) == 2
        assert f"found {error}" in capsys.readouterr().err


def test_the_first_graph_without_a_configuration_ends_the_command(tmp_path, monkeypatch, ports):
    monkeypatch.setattr(serve, "write_model", lambda file, folder, options: 1)
    monkeypatch.setattr(serve, "_serve", pytest.fail)
    assert cli.main(["serve", *graphs(tmp_path, "a.onnx", "b.onnx"), *ports]) == 1


class Process:
    """A server that runs until it is terminated, or that has ended by itself."""

    def __init__(self, code):
        self.code, self.waited = code, 0

    def poll(self):
        return self.code

    def terminate(self):
        self.code = 0 if self.code is None else self.code

    def wait(self):
        assert self.code is not None
        self.waited += 1
        return self.code


@pytest.fixture
def server(monkeypatch):
    """Return a function: exit code of a server that has ended, or None -> the server."""
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def run(code):
        process = Process(code)
        monkeypatch.setattr(serve.subprocess, "Popen", lambda command: process)
        return process

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


PORTS = {"http": 1, "grpc": 2, "metrics": 3}


def test_the_exit_code_is_that_of_the_server(server, tmp_path):
    process = server(7)
    assert serve._serve(tmp_path, ["m"], PORTS) == 7
    assert process.waited


def test_the_server_ends_if_its_address_cannot_be_printed(server, tmp_path, monkeypatch):
    process = server(None)
    monkeypatch.setattr(serve, "_is_ready", lambda port: True)
    # The reader of the pipe has ended.
    monkeypatch.setattr(serve, "_usage", lambda *_: (_ for _ in ()).throw(BrokenPipeError))
    with pytest.raises(BrokenPipeError):
        serve._serve(tmp_path, ["m"], PORTS)
    assert (process.code, process.waited) == (0, 1)


def test_a_server_that_is_not_ready_in_time_ends(server, tmp_path, monkeypatch, capsys):
    process = server(None)
    monkeypatch.setattr(serve, "_is_ready", lambda port: False)
    monkeypatch.setattr(serve, "_READY_S", -1)
    assert serve._serve(tmp_path, ["m"], PORTS) == 3
    assert "not ready after" in capsys.readouterr().err
    assert (process.code, process.waited) == (0, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_runs_cleanups(number):
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended, cleanup_on_termination():
        signal.raise_signal(number)
    assert ended.value.code == 128 + number
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    ("free", "hard", "expected"),
    [
        ([70, 50], -1, [(150, -1)]),
        ([70], 1000, [(170, 1000)]),
        ([70], 120, []),
        ([], -1, []),
    ],
)
def test_memory_is_limited_to_what_is_free(free, hard, expected, monkeypatch):
    limits = [MemoryLimit("RAM", 1000, own, "") for own in free]
    set_to = []
    monkeypatch.setattr(child_process, "read_limits", lambda: limits)
    monkeypatch.setattr(child_process, "own_resident_bytes", lambda: 100)
    monkeypatch.setattr(child_process.resource, "getrlimit", lambda which: (-1, hard))
    monkeypatch.setattr(
        child_process.resource, "setrlimit", lambda which, value: set_to.append(value)
    )
    limit_memory()
    assert set_to == expected
