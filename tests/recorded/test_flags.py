"""The command line accepts and refuses the values that the real server does, with its reasons.

`tests/contract/flag_values.py` lists the values and records the real server's answers.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterator

import pytest
from contract.flag_values import RECORDING, split

from reference_server.command import arguments, cli
from reference_server.core.errors import ServerError

TABLE: dict[str, str] = json.loads(RECORDING.read_text(encoding="utf-8"))
#: Arguments that only one of the servers accepts, by the reason.
DIFFERENCES = {
    r"--allow-(sagemaker|vertex-ai)=true.*": "such a port cannot be served here",
    r"--(http|grpc|metrics)-port=(0|-1|0x10)": "no client could find such a port",
    r"--(http|grpc)-header-forward-pattern=(.* .*=)?[(\[*+].*": "such a pattern matches nothing",
    r"--host-policy=a,b=c( --host-policy=a,b=c)?|--model-load-gpu-limit=0:2": "without effect here",
    r"--trace-file=": "an empty name means no file, which is the default",
}
#: Arguments whose refusal has another reason here.
OTHER_TEXTS = r"--rate-limit-resource=.*|--trace-(rate|level|count|log-frequency)="
FLAGS = {
    flag: list(given)
    for flag, given in itertools.groupby(TABLE, lambda text: re.split("[= ]", text)[0])
}


def refusal(argument: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the reason of this server's refusal; "" if it accepts the argument."""
    try:
        cli.parse([*split(argument), "--triton-version=2.51"])
    except SystemExit:
        return capsys.readouterr().err
    except ServerError:  # Triton finds this, too, when it creates the server
        return ""
    return ""


@pytest.fixture(autouse=True, scope="module")
def one_parser() -> Iterator[None]:
    """Make the parser once; that takes longer than parsing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "new_parser", functools.cache(arguments.new_parser))
        yield


@pytest.mark.parametrize("flag", FLAGS)
def test_values_of_a_flag(flag: str, capsys: pytest.CaptureFixture[str]):
    for argument in FLAGS[flag]:
        said, real = refusal(argument, capsys), TABLE[argument]
        if any(re.fullmatch(pattern, argument) for pattern in DIFFERENCES):
            assert bool(said) != bool(real), argument
        else:
            assert bool(said) == bool(real), f"{argument}: {said}"
            if not re.fullmatch(OTHER_TEXTS, argument):
                assert real.split("\n")[0] in said
