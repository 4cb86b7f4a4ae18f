"""Settings that mean nothing: they are accepted, as in Triton, and warned of."""

import pytest

from reference_server import cli

KNOWN = [
    "--backend-config=python,host=process",
    "--backend-config=python,shm-default-byte-size=4194304",
    "--backend-config=default-max-batch-size=8",
    "--metrics-config=counter_latencies=false",
    "--metrics-config=summary_quantiles=0.5:0.05",
    "--trace-config=level=OFF",
    "--trace-config=mode=triton",
    "--trace-config=triton,file=t",
    "--cache-config=local,size=4096",
]


@pytest.mark.parametrize("argument", KNOWN)
def test_a_setting_that_means_something_is_not_warned_of(argument):
    assert cli.parse([argument])[1] == []


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        (
            "--backend-config=python,hots=process",
            "unknown setting 'python,hots'; did you mean 'python,host'?",
        ),
        ("--backend-config=hosts=process", "unknown setting 'hosts'; did you mean 'python,host'?"),
        (
            "--backend-config=pyhton,host=process",
            "there is no backend 'pyhton' with settings here, only 'python'; "
            "did you mean 'python'?",
        ),
        (
            "--backend-config=tensorrt,a=b",
            "there is no backend 'tensorrt' with settings here, only 'python'",
        ),
        (
            "--metrics-config=counter_latency=true",
            "unknown setting 'counter_latency'; did you mean 'counter_latencies'?",
        ),
        (
            "--metrics-config=x=1",
            "unknown setting 'x'; known are counter_latencies, summary_latencies, "
            "summary_quantiles",
        ),
        ("--metrics-config=summary_latencies=1", "the value must be 'true' or 'false'"),
        ("--trace-config=levle=OFF", "unknown setting 'levle'; did you mean 'level'?"),
        (
            "--trace-config=triton,level=OFF",
            "unknown setting 'triton,level'; did you mean 'level'?",
        ),
        ("--trace-config=file=t", "unknown setting 'file'; did you mean 'triton,file'?"),
    ],
)
def test_a_setting_that_means_nothing_is_warned_of(argument, said):
    (warning,) = cli.parse([argument])[1]
    assert warning == f"no effect in the reference server: {argument}: {said}"


def test_an_unknown_setting_of_the_cache():
    arguments = ["--cache-config=local,size=4096", "--cache-config=local,siez=1"]
    assert cli.parse(arguments)[1] == [
        "no effect in the reference server: --cache-config=local,siez=1: unknown setting "
        "'local,siez'; did you mean 'local,size'?"
    ]


def test_the_log_tells(capsys, tmp_path):
    assert cli.main(["--backend-config=python,hots=process"]) == 1
    assert "did you mean 'python,host'?" in capsys.readouterr().err
