"""Mistakes on the command line that are reported, with their fixes, before models are loaded."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from server.support.model_folders import VECTOR, write_model

from reference_server.command import cli, preflight

WITHOUT_PORTS = ["--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"]


def hints(*arguments: str) -> list[str]:
    return preflight.hints(cli.parse(arguments)[0])


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.parametrize(
    ("service", "shown_as"), [("http", "HTTP"), ("grpc", "GRPC"), ("metrics", "Metrics")]
)
def test_a_port_in_use_is_reported_before_models_are_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], taken: int, service: str, shown_as: str
) -> None:
    write_model(tmp_path, "m", VECTOR, 'raise Exception("loaded")')
    others = {"http", "grpc", "metrics"} - {service}
    code = cli.main(
        [
            f"--model-repository={tmp_path}",
            f"--{service}-address=127.0.0.1",
            f"--{service}-port={taken}",
            *(f"--allow-{other}=false" for other in sorted(others)),
        ]
    )
    shown = capsys.readouterr().err
    assert code == 1
    assert "loaded" not in shown
    assert shown.endswith(
        # Apart from the fix, tritonserver 2.51 ends with this line, after it has loaded all models.
        f"error: failed to start {shown_as} service: Unavailable - Socket "
        f"'127.0.0.1:{taken}' already in use : "
        f"--{service}-port=N selects another port, --allow-{service}=false disables it\n"
    )


def test_a_shared_port_that_another_process_uses_is_accepted(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        arguments = [
            *("--model-repository", str(tmp_path), "--reuse-http-port=true"),
            *("--http-address=127.0.0.1", f"--http-port={other.getsockname()[1]}"),
            *("--allow-grpc=false", "--allow-metrics=false"),
        ]
        preflight.check_ports(cli.parse(arguments)[0])


@pytest.mark.parametrize(
    ("given", "files", "parent", "found"),
    [
        ("m", ["m/config.pbtxt", "m/1/model.py"], ".", "it contains config.pbtxt"),
        ("m", ["m/1/model.onnx"], ".", "it contains 1/model.onnx"),
        ("m/3", ["m/3/model.py"], ".", "it is the folder of a version and contains model.py"),
    ],
)
def test_a_model_given_as_a_repository_is_reported_with_its_repository(
    tmp_path: Path, given: str, files: list[str], parent: str, found: str
) -> None:
    for file in files:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    path = tmp_path / given
    assert hints(f"--model-repository={path}") == [
        f"--model-repository={path}: found the folder of a model ({found}); expected the folder "
        f"that contains models. Use --model-repository={(tmp_path / parent).resolve()}"
    ]


@pytest.mark.parametrize("files", [[], ["m/1/model.py"], ["1/config.pbtxt", "1/1/model.py"], ["x"]])
def test_a_repository_has_no_hints(tmp_path: Path, files: list[str]) -> None:
    for file in files:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert hints(f"--model-repository={tmp_path}") == []
    assert hints(f"--model-repository={tmp_path / 'missing'}") == []


@pytest.mark.usefixtures("signals_as_before")
def test_a_failed_start_repeats_the_hint_above_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """tritonserver 2.51 ends with the same last line and code, and without the reason."""
    write_model(tmp_path, "m", VECTOR)
    log = tmp_path / "log"
    code = cli.main([*WITHOUT_PORTS, f"--model-repository={tmp_path / 'm'}", f"--log-file={log}"])
    *_, hint, reason = capsys.readouterr().err.splitlines()
    assert code == 1
    assert hint.startswith("hint: --model-repository=")
    assert hint.endswith(f"Use --model-repository={tmp_path}")
    assert reason == "error: creating server: Internal - failed to load all models"
    assert hint.removeprefix("hint: ") in log.read_text()


@pytest.mark.parametrize(
    ("stub", "suggestion"),
    [
        ("detector=stubs:f", None),
        ("detectro=stubs:f", "; did you mean 'detector'?"),
        ("xyz=stubs:f", "; its models are: detector, reader"),
    ],
)
def test_a_stub_without_a_model_is_reported(
    tmp_path: Path, stub: str, suggestion: str | None
) -> None:
    write_model(tmp_path, "detector", VECTOR)
    write_model(tmp_path, "reader", VECTOR)
    name = stub.partition("=")[0]
    found = hints(f"--model-repository={tmp_path}", f"--stub-model={stub}")
    assert found == (
        []
        if suggestion is None
        else [
            f"--stub-model={stub} has no effect: the repository has no model '{name}'{suggestion}"
        ]
    )
