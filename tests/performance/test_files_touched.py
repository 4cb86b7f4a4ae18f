"""The count of files that an operation touches; the bars are those of docs/architecture.md."""

import threading

import pytest

from tools.files_touched import OPERATIONS, Recorder, main


def test_files_are_counted_in_order_with_returns(tmp_path):
    package = tmp_path / "ours"
    package.mkdir()
    names = {}
    for name, text in {
        "a.py": "def a(b):\n    b(); b()\n    return helper()\ndef helper(): pass",
        "b.py": "def b(c):\n    c()",
        "c.py": "def c(): pass",
    }.items():
        exec(compile(text, package / name, "exec"), names)
    recorder = Recorder(["ours"])
    with recorder.installed():
        touched = recorder.record(lambda: names["a"](lambda: names["b"](lambda: names["c"]())))
    assert touched.entries == {"ours/a.py": 2, "ours/b.py": 2, "ours/c.py": 2}
    assert list(touched.entries) == ["ours/a.py", "ours/b.py", "ours/c.py"]
    assert touched.returns == 2  # to b and to c, when both are called again
    assert list(touched.lines())[-1] == "3 files, 2 returns to a file just left"


def test_other_threads_are_followed_if_asked_for(tmp_path):
    names = {}
    exec(compile("def f(): pass", tmp_path / "ours" / "f.py", "exec"), names)
    for every_thread in (False, True):
        recorder = Recorder(["ours"])
        with recorder.installed(every_thread=every_thread):

            def operation():
                thread = threading.Thread(target=names["f"])
                thread.start()
                thread.join()

            assert len(recorder.record(operation).entries) == every_thread


@pytest.mark.brute_force
def test_a_ragged_batch_touches_few_files():
    touched = OPERATIONS["ragged"]()
    assert "ge_runtime/batching/ragged.py" in touched.entries
    assert len(touched.entries) <= 19


@pytest.mark.brute_force
def test_a_batch_through_the_service_touches_its_client(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert "ge_runtime/npu/service/engine.py" in OPERATIONS["service"]().entries


def test_an_inference_by_http_touches_few_files(capsys):
    main(["http"])
    *_, rooms, total = capsys.readouterr().out.splitlines()
    assert "reference_server/gateway" in rooms
    assert int(total.split()[0]) <= 26
    assert total.endswith("returns to a file just left")


def test_an_operation_has_to_be_named():
    with pytest.raises(SystemExit):
        main([])
