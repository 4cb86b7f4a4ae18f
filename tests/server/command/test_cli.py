"""The command line: accepted options, messages, and exit codes."""

import ctypes
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from server.support.model_folders import BROKEN, VECTOR, write_model

from reference_server.command import cli
from reference_server.core.profiles import NEWEST
from reference_server.options import (
    Compression,
    ControlMode,
    GrpcOptions,
    HttpOptions,
    LatencyMetrics,
    LogOptions,
    MetricsOptions,
    RateLimit,
    Restriction,
    TimeLimits,
    TlsOptions,
    TraceOptions,
    WebOptions,
)
from reference_server.shutdown import ExitTimeout

WITHOUT_PORTS = ["--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"]
HERE = ["--model-repository", "models"]

pytestmark = pytest.mark.usefixtures("signals_as_before")


OPTIONS = {
    "--model-store=other": ("model_repositories", (Path("models"), Path("other"))),
    "--id=mine": ("server_id", "mine"),
    "--allow-http=false": ("http", None),
    "--http-address=::1": ("http", HttpOptions("::1")),
    "--http-port=9000": ("http", HttpOptions(port=9000)),
    "--http-header-forward-pattern=X-": ("http", HttpOptions(forwarded="X-")),
    "--http-max-input-size=9": ("http", HttpOptions(max_input_bytes=9)),
    "--http-max-input-size=100MB": ("http", HttpOptions(max_input_bytes=100)),
    f"--http-max-input-size={2**63 - 1}": ("http", HttpOptions(max_input_bytes=2**63 - 1)),
    "--http-allowed-host=a.example": ("web", WebOptions(("a.example",))),
    "--http-allow-cross-site=true": ("web", WebOptions(allow_cross_site=True)),
    "--allow-client-shm=ON": ("client_shared_memory", True),
    "--triton-version=newest": ("profile", NEWEST),
    "--reuse-http-port=true": ("http", HttpOptions(reuse_port=True)),
    "--allow-metrics=false": ("metrics", None),
    "--metrics-address=::1": ("metrics", MetricsOptions("::1", page_log=True)),
    "--metrics-port=9002": ("metrics", MetricsOptions(port=9002)),
    "--metrics-interval-ms=0": ("metrics", MetricsOptions(interval_ms=0)),
    "--metrics-interval-ms=1.5": ("metrics", MetricsOptions(interval_ms=1)),
    "--allow-cpu-metrics=false": ("metrics", MetricsOptions(cpu=False)),
    "--allow-page=false": ("metrics", MetricsOptions(page=False)),
    "--allow-page=off": ("http", HttpOptions(page=False)),
    "--allow-page-log=true": ("metrics", MetricsOptions(page_log=True)),
    "--metrics-config=summary_latencies=true": (
        "metrics",
        MetricsOptions(latencies=LatencyMetrics(summaries=True)),
    ),
    "--cache-config=local,size=4096": ("response_cache_bytes", 4096),
    "--response-cache-byte-size=4096": ("response_cache_bytes", 4096),
    "--exit-on-error=false": ("exit_on_error", False),
    "--strict-readiness=0": ("strict_readiness", False),
    "--disable-auto-complete-config": ("auto_complete_config", False),
    "--model-load-thread-count=9": ("model_load_threads", 9),
    "--model-load-retry-count=2": ("model_load_retries", 2),
    "--model-control-mode=POLL": ("control_mode", ControlMode.POLL),
    "--repository-poll-secs=3": ("poll_s", 3),
    "--exit-timeout-secs=5": ("exit_timeout_s", 5),
    "--connection-idle-secs=9": ("time_limits", TimeLimits(idle_s=9)),
    "--connection-head-secs=0": ("time_limits", TimeLimits(head_s=0)),
    "--connection-body-secs=1.5": ("time_limits", TimeLimits(body_s=1.5)),
    "--connection-unread-secs=9": ("time_limits", TimeLimits(unread_s=9)),
    "--allow-outside-links=false": ("outside_links", False),
    "--execution-warning-secs=9": ("execution_warning_s", 9.0),
    "--connection-most=7": ("most_connections", 7),
    "--connection-memory-mib=7": ("most_request_bytes", 7 << 20),
    "--connection-most=0": ("most_connections", 0),
    "--log-verbose=2": ("log", LogOptions(verbose_level=2)),
    "--log-info=off": ("log", LogOptions(info=False)),
    "--log-warning=false": ("log", LogOptions(warning=False)),
    "--log-error=false": ("log", LogOptions(error=False)),
    "--log-format=ISO8601": ("log", LogOptions(iso8601=True)),
    "--log-file=x.log": ("log", LogOptions(file="x.log")),
}


@pytest.mark.parametrize(("argument", "setting"), OPTIONS.items())
def test_an_option(argument, setting):
    name, value = setting
    for given in ([argument], argument.split("=", 1)):
        assert getattr(cli.parse([*HERE, *given])[0], name) == value


@pytest.mark.parametrize(
    ("api", "shown"), [("model-repository", False), ("statistics", False), ("trace", True)]
)
@pytest.mark.parametrize("option", ["--http-restricted-api", "--grpc-restricted-protocol"])
def test_the_live_page_is_off_where_its_operations_are_restricted(option, api, shown):
    options = cli.parse([*HERE, f"{option}={api}:k=v"])[0]
    assert options.metrics.page is shown


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], False),
        (["--http-address=127.0.0.1"], True),
        (["--http-address=127.0.0.1", "--metrics-address=0.0.0.0"], False),
        (["--http-address=localhost", "--allow-page-log=false"], False),
        (["--allow-page-log=true"], True),
        (["--allow-page-log=true", "--http-restricted-api=logging:k=v"], False),
        (["--http-address=::1", "--grpc-restricted-protocol=logging:k=v"], False),
    ],
)
def test_the_page_shows_the_log_only_on_local_ports_by_default(arguments, shown):
    assert cli.parse([*HERE, *arguments])[0].metrics.page_log is shown


def test_startup_models():
    arguments = [*HERE, "--model-control-mode=explicit", "--load-model=a", "--load-model", "b"]
    options = cli.parse([*arguments, "--load-model=a"])[0]
    assert (options.control_mode, options.startup_models) == (ControlMode.EXPLICIT, ("a", "b"))


def test_the_rate_limit():
    assert cli.parse(HERE)[0].rate_limit is None
    limited = [*HERE, "--rate-limit=execution_count"]
    assert cli.parse(limited)[0].rate_limit == RateLimit()
    given = ["R:1", "R:4:0", "S:2:3"]
    options = cli.parse([*limited, *(f"--rate-limit-resource={text}" for text in given)])[0]
    assert options.rate_limit == RateLimit({("R", True): 4, ("R", False): 4, ("S", True): 2})


def test_restrictions():
    arguments = [
        *HERE,
        "--http-restricted-api=health,trace:k=v",
        "--http-restricted-api=logging:a=b",
    ]
    options = cli.parse([*arguments, "--grpc-restricted-protocol=health:k=w"])[0]
    known, other = Restriction("k", "v"), Restriction("a", "b")
    assert options.http is not None
    assert options.http.restricted == {"health": known, "trace": known, "logging": other}
    assert options.grpc is not None
    assert options.grpc.restricted == {"health": Restriction("k", "w")}


def test_tls_of_grpc():
    files = ["--grpc-server-cert=c", "--grpc-server-key=k", "--grpc-root-cert=r"]
    assert cli.parse([*HERE, *files])[0].grpc.tls is None
    assert cli.parse([*HERE, *files, "--grpc-use-ssl=1"])[0].grpc.tls == TlsOptions("c", "k", "r")
    mutual = cli.parse([*HERE, *files, "--grpc-use-ssl-mutual=1"])[0].grpc.tls
    assert mutual == TlsOptions("c", "k", "r", demands_client_certificate=True)


def test_grpc_metadata_pattern():
    assert cli.parse([*HERE, "--grpc-header-forward-pattern=X-.*"])[0].grpc.forwarded == "X-.*"
    with pytest.raises(SystemExit):
        cli.parse([*HERE, "--grpc-header-forward-pattern=("])


def test_options_of_grpc():
    arguments = [
        *("--grpc-address=::1", "--grpc-port=9", "--reuse-grpc-port=true"),
        *("--grpc-infer-response-compression-level=medium", "--grpc-keepalive-time=1"),
        *("--grpc-keepalive-timeout=2", "--grpc-keepalive-permit-without-calls=1"),
        *("--grpc-http2-max-pings-without-data=3", "--grpc-http2-max-ping-strikes=5"),
        *("--grpc-http2-min-recv-ping-interval-without-data=4", "--grpc-max-connection-age=6"),
        "--grpc-max-connection-age-grace=7",
    ]
    expected = GrpcOptions("::1", 9, True, Compression.MEDIUM, 1, 2, True, 3, 4, 5, 6, 7)
    assert cli.parse([*HERE, *arguments])[0].grpc == expected


def test_options_without_effect_have_one_warning():
    arguments = [*HERE, "--cache-directory=x", "--allow-gpu-metrics=0", "--http-thread-count", "4"]
    assert cli.parse(arguments)[1] == [
        "no effect in the reference server: --allow-gpu-metrics, --cache-directory, "
        "--http-thread-count"
    ]


@pytest.mark.parametrize(
    ("arguments", "completes"),
    [
        (["--strict-model-config=true"], False),
        (["--strict-model-config=false"], True),
        (["--strict-model-config=false", "--disable-auto-complete-config"], False),
        (["--disable-auto-complete-config", "--strict-model-config=false"], False),
    ],
)
def test_the_deprecated_option_for_auto_completion(capsys, arguments, completes):
    assert cli.parse([*HERE, *arguments])[0].auto_complete_config is completes
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == (
        "Warning: '--strict-model-config' has been deprecated! Please use "
        "'--disable-auto-complete-config' instead."
    )
    overridden = "Warning: Overriding deprecated '--strict-model-config' from False to True in"
    assert [line.startswith(overridden) for line in shown[1:]] == [True] * (len(arguments) - 1)


@pytest.mark.parametrize(
    ("arguments", "trace"),
    [
        (
            ["--trace-file=t", "--trace-count=4", "--trace-log-frequency=3"],
            TraceOptions(file="t", count=4, log_frequency=3),
        ),
        (["--trace-rate=5", "--trace-config=rate=6"], TraceOptions(rate=6)),
        (["--trace-config=triton,file=b", "--trace-file=a"], TraceOptions(file="b")),
        (
            ["--trace-level=TIMESTAMPS", "--trace-config=level=TENSORS"],
            TraceOptions(levels=frozenset({"TIMESTAMPS", "TENSORS"})),
        ),
        (["--trace-level=off", "--trace-config=level=TENSORS"], TraceOptions()),
        (["--trace-level=OFF", "--trace-level=TIMESTAMPS"], TraceOptions()),
    ],
)
def test_deprecated_trace_options(capsys, arguments, trace):
    assert cli.parse([*HERE, *arguments])[0].trace == trace
    assert "has been deprecated and will be removed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--metrics-port=0"], "Invalid option value. Got 0, expected 1 to 65535"),
        (
            ["--connection-idle-secs=-1"],
            "Invalid option value. Got -1, expected a number of seconds, 0 or more",
        ),
        (
            ["--cache-config=local,size=4096", "--response-cache-byte-size=4096"],
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided."
            " Please provide one or the other.",
        ),
        (
            ["--http-port=7", "--grpc-port=7", "--metrics-port=7"],
            "The server cannot listen to HTTP requests and GRPC requests at the same address and "
            "port 0.0.0.0:7",
        ),
        (
            ["--grpc-port=7", "--metrics-port=7"],
            "The server cannot listen to GRPC requests and metrics requests at the same address "
            "and port 0.0.0.0:7",
        ),
        (
            ["--http-port=7", "--metrics-port=7"],
            "The server cannot listen to HTTP requests and metrics requests at the same address "
            "and port 0.0.0.0:7",
        ),
        (
            ["--load-model=m"],
            "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as",
        ),
        (["--http-max-input-size=0"], "--http-max-input-size must be greater than 0."),
        (["--http-max-input-size=0x10"], "--http-max-input-size must be greater than 0."),
        (["--http-max-input-size=9223372036854775808"], "value is out of bound. Got 92233720368"),
        (["--grpc-infer-thread-count=129"], "invalid argument for --grpc_infer_thread_count."),
        (["--grpc-max-response-pool-size=0"], "--grpc-max-response-pool-size must be greater"),
        (["--grpc-max-response-pool-size=2147483648"], "option value is out of bound. Got 21"),
        (["--exit-timeout-secs=2147483648"], "option value is out of bound. Got 2147483648"),
        (["--allow-client-shm=maybe"], "invalid value for bool option: maybe"),
        (["--triton-version=2.70"], "expected one of '2.51', 'newest'"),
        (["--nope"], "unrecognized option '--nope'"),
        (["--http-prot", "1"], "unrecognized option '--http-prot'; did you mean '--http-port'?"),
        (["--http=1"], "ambiguous option: --http=1 could match --http-address, --http-port"),
        (["stray"], "Unexpected argument: stray"),
        (["--allow-sagemaker=true"], "not served by the reference server"),
    ],
)
def test_an_invalid_option_exits_with_1(capsys, arguments, said):
    with pytest.raises(SystemExit) as exited:
        cli.main([*HERE, *arguments])
    assert exited.value.code == 1
    shown = capsys.readouterr().err
    *_, last = shown.splitlines()
    first = r'^(Bad option: "--[a-z0-9-]+"\.$|Error: |Unexpected argument: )'
    assert re.search(first, shown, re.MULTILINE)
    assert said in shown
    assert last == "see --help for all options"


def test_a_log_file_that_cannot_be_written_is_reported(capsys, tmp_path):
    assert cli.main([*HERE, f"--log-file={tmp_path / 'no' / 'log'}"]) == 1
    assert "/no/log': No such file or directory" in capsys.readouterr().err


def ran(capsys, *arguments):
    """Run the server: return the exit code and the last line of stderr."""
    code = cli.main([*WITHOUT_PORTS, *arguments])
    lines = capsys.readouterr().err.splitlines()
    return code, lines[-1] if lines else ""


def test_a_missing_repository(capsys, tmp_path):
    assert ran(capsys, f"--model-repository={tmp_path / 'no'}") == (
        1,
        f"error: creating server: Internal - failed to stat file {tmp_path / 'no'}",
    )


#: A model that stops the server while it loads, and records its own finalization.
STOPPING = """
    import os
    import signal

    class TritonPythonModel:
        def initialize(self, args):
            self.note = args["model_repository"] + "/finalized"
            os.kill(os.getpid(), signal.SIGTERM)

        def finalize(self):
            open(self.note, "x").close()
"""


@pytest.mark.parametrize("broken", [False, True], ids=["all loaded", "one failed"])
def test_a_signal_stops_the_server_with_0(capsys, tmp_path, broken):
    folder = write_model(tmp_path, "m", VECTOR, STOPPING)
    if broken:
        write_model(tmp_path, "x", source=BROKEN)
    code, _ = ran(capsys, f"--model-repository={tmp_path}", "--exit-on-error=false")
    assert code == 0
    assert (folder / "finalized").exists()


def test_the_process_ends_at_once_if_models_still_run_after_the_timeout(tmp_path, monkeypatch):
    """A normal exit would destroy what their threads use, and abort."""

    async def serve(options):
        raise ExitTimeout

    codes = []
    monkeypatch.setattr(cli, "_serve", serve)
    monkeypatch.setattr(cli.logging, "shutdown", lambda: codes.append("flushed"))
    monkeypatch.setattr(cli.os, "_exit", codes.append)
    cli.main([*WITHOUT_PORTS, f"--model-repository={tmp_path}"])
    assert codes == ["flushed", 1]


PRINTING = """
    import os
    import signal

    print("imported")

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            print("completed")
            return config

        def initialize(self, args):
            print("some", 1)
            os.kill(os.getpid(), signal.SIGTERM)

        def is_ready(self):
            return True

        def finalize(self):
            print("the", "end", end="")
"""


def test_lines_printed_by_a_model_begin_with_its_name(capsys, tmp_path):
    write_model(tmp_path, "m", VECTOR, PRINTING)
    cli.main([*WITHOUT_PORTS, f"--model-repository={tmp_path}"])
    shown = capsys.readouterr()
    assert [line for line in shown.out.splitlines() if line.startswith("[m")] == [
        *("[m] imported", "[m] completed", "[m_0] imported", "[m_0] some 1", "[m_0] the end")
    ]
    assert "] [m" not in shown.out + shown.err
    assert "[m" not in shown.err


PARSING = """
    import argparse, os, signal, sys

    class TritonPythonModel:
        def initialize(self, args):
            print(argparse.ArgumentParser().parse_args(), sys.argv)
            os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_model_that_parses_arguments_finds_none(capsys, tmp_path):
    write_model(tmp_path, "m", VECTOR, PARSING)
    before = sys.argv
    cli.main([*WITHOUT_PORTS, f"--model-repository={tmp_path}", "--log-info=false"])
    assert capsys.readouterr().out == "[m_0] Namespace() ['']\n"
    assert sys.argv is before


def test_the_switch_interval_is_short_while_the_server_runs(tmp_path, monkeypatch):
    found = []

    async def serve(_options):
        found.append(sys.getswitchinterval())

    monkeypatch.setattr(cli, "_serve", serve)
    before = sys.getswitchinterval()
    assert cli.main([*WITHOUT_PORTS, f"--model-repository={tmp_path}"]) == 0
    assert (found, sys.getswitchinterval()) == ([pytest.approx(0.001)], before)


#: Allocates as large requests do, and prints the page faults after the first allocations.
LONG_REQUESTS = """
import ctypes, resource
import numpy as np
from reference_server.command import cli
cli.keep_freed_memory()
def requests():
    held = [np.ones(602_112, np.uint8) for _ in range(4)]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
requests()
before = faults()
for _ in range(50):
    requests()
print(faults() - before)
"""


@pytest.mark.brute_force
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc's malloc has it")
def test_the_memory_of_large_requests_is_reused():
    command = [sys.executable, "-c", LONG_REQUESTS]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    pages = 4 * 602_112 // resource.getpagesize()
    assert int(printed) < pages  # the allocations had 50 times as many
