"""The command line's settings of backends: real texts for what cannot be read."""

import pytest

from reference_server import config_options
from reference_server.cli import parse


def test_the_settings_of_the_python_backend_are_kept_the_last_of_each():
    options, _ = parse(
        [
            "--backend-config=python,host=process",
            "--backend-config=default-max-batch-size=8",
            "--backend-config=onnx,a=b",
            "--backend-config=python,a,b=c=d",
            "--backend-config=python,host=inline",
        ]
    )
    assert options.python_backend == {"host": "inline", "a,b": "c=d"}


FORM = "--backend-config option format is '<backend name>,<setting>=<value>'. Got "
NO_BACKEND = (
    "No backend specified. --backend-config option format is <backend name>,<setting>=<value> or "
    "<setting>=<value>. Got "
)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("python", FORM),
        ("python,foo", FORM),
        ("python,=x", FORM),
        ("python,name=", FORM),
        (",a=b", NO_BACKEND),
    ],
)
def test_what_cannot_be_read_ends_the_start(capsys, text, refusal):
    with pytest.raises(SystemExit) as caught:
        parse([f"--backend-config={text}"])
    assert caught.value.code == 1
    assert refusal + text in capsys.readouterr().err


def test_a_setting_of_all_backends_is_none_of_python():
    assert config_options.backend_setting("a=b") == ("", "a", "b")
    assert config_options.python_backend([("", "a", "b")]) == {}
