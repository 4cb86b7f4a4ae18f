"""Log and trace settings, and repository control where it is not allowed.

Each case about settings ends by reading them, after which they are put back.
"""

from __future__ import annotations

from contract.grpc_casebook import GrpcCase, call, chapter, rpc
from tritonclient.grpc import service_pb2 as pb

LogValue = pb.LogSettingsRequest.SettingValue
TraceValue = pb.TraceSettingRequest.SettingValue
Held = pb.ModelRepositoryParameter

LOG_VALUES = {
    "true": LogValue(bool_param=True),
    "zero": LogValue(uint32_param=0),
    "the largest number": LogValue(uint32_param=2**32 - 1),
    "default": LogValue(string_param="default"),
    "ISO8601": LogValue(string_param="ISO8601"),
    "other text": LogValue(string_param="iso8601"),
    "nothing": LogValue(),
}
# Which of them each setting takes.
LOG_TAKES = {
    "log_file": (),
    "log_info": ("true",),
    "log_warning": ("true",),
    "log_error": ("true",),
    "log_verbose_level": ("zero", "the largest number"),
    "log_format": ("default", "ISO8601"),
    "other": tuple(LOG_VALUES),
}
TRACE_VALUES = [
    *([], ["OFF"], ["TIMESTAMPS"], ["off"], ["OFF", "OFF"], ["OFF", "TIMESTAMPS"]),
    *(["1"], ["0"], ["-1"], ["-2"], ["1000"], ["99999999999"], ["2147483647"], ["2147483648"]),
    *(["x"], [""], [" 5"], ["5x"], ["1", "2"]),
]
TRACE_SETTINGS = (
    *("trace_file", "trace_level", "trace_rate", "trace_count", "log_frequency", "trace_mode"),
    "other",
)
KEPT = {
    **{f"log_{level}": LogValue(bool_param=True) for level in ("info", "warning", "error")},
    "log_verbose_level": LogValue(uint32_param=0),
    "log_format": LogValue(string_param="default"),
}
HELD = {
    "true": Held(bool_param=True),
    "a number": Held(int64_param=1),
    "text": Held(string_param="x"),
    "bytes": Held(bytes_param=b"x"),
    "nothing": Held(),
}
NOT_ALLOWED = "explicit model load / unload is not allowed if polling is enabled"


def log(**settings):
    return call("LogSettings", pb.LogSettingsRequest(settings=settings))


def trace(model="", **settings):
    values = {name: TraceValue(value=value) for name, value in settings.items()}
    return call("TraceSetting", pb.TraceSettingRequest(model_name=model, settings=values))


def of_log(name, *calls, code="OK", says=""):
    """Write a row; the settings are what they were when the next one begins."""
    return GrpcCase(name, (log(**KEPT), *calls), code, says)


def of_trace(name, *calls, code="OK", says=""):
    """Write a row, as `of_log`."""
    cleared = dict.fromkeys(("trace_level", "trace_rate", "trace_count", "log_frequency"), ())
    return GrpcCase(name, (trace(**cleared), trace("vector", **cleared), *calls), code, says)


def load(name, code, says, *, model="vector", repository="", **parameters):
    request = pb.RepositoryModelLoadRequest(
        model_name=model, repository_name=repository, parameters=parameters
    )
    return rpc(name, "RepositoryModelLoad", request, code, says)


def unload(name, code, says, *, model="vector", repository="", **parameters):
    request = pb.RepositoryModelUnloadRequest(
        model_name=model, repository_name=repository, parameters=parameters
    )
    return rpc(name, "RepositoryModelUnload", request, code, says)


CASES = [
    *chapter(
        "log settings",
        of_log("read", log(), says="log_verbose_level"),
        (
            of_log(f"{name} is {what}", log(**{name: value}), log())
            for name, takes in LOG_TAKES.items()
            for what, value in LOG_VALUES.items()
            if what in takes
        ),
        (
            of_log(
                f"{name} is {what}",
                log(**{name: value}),
                code="UNIMPLEMENTED" if name == "log_file" else "INVALID_ARGUMENT",
            )
            for name, takes in LOG_TAKES.items()
            for what, value in LOG_VALUES.items()
            if what not in takes
        ),
        of_log(
            "a fault after a change",
            log(log_info=LogValue(bool_param=False), log_format=LogValue(bool_param=True)),
            log(),
            says="bool_param: false",
        ),
    ),
    *chapter(
        "trace settings",
        of_trace("read", trace(), says="trace_rate"),
        of_trace("of a model", trace("vector"), says="trace_rate"),
        of_trace(
            "of an unknown model",
            trace("nobody"),
            code="INVALID_ARGUMENT",
            says="Request for unknown model : nobody",
        ),
        of_trace("of a model that did not load", trace("misspelt"), code="INVALID_ARGUMENT"),
        *(
            GrpcCase(
                f"{name} is {value}",
                (
                    trace(trace_level=[], trace_rate=[], trace_count=[], log_frequency=[]),
                    trace(**{name: value}),
                    trace(),
                ),
                "OK",
            )
            for name in TRACE_SETTINGS
            for value in TRACE_VALUES
        ),
        of_trace("a model's own", trace("vector", trace_rate=["7"]), trace("vector"), trace()),
        of_trace(
            "a model's own, cleared",
            trace("vector", trace_rate=["7"]),
            trace("vector", trace_rate=[]),
            trace("vector"),
        ),
        of_trace("a model follows the server", trace(trace_rate=["9"]), trace("vector")),
        of_trace("a change before a fault", trace(trace_rate=["9"], trace_count=["x"]), trace()),
    ),
    *chapter(
        "repository",
        rpc("index", "RepositoryIndex", pb.RepositoryIndexRequest(), says='state: "READY"'),
        rpc("index of the ready", "RepositoryIndex", pb.RepositoryIndexRequest(ready=True)),
        rpc(
            "index of a repository",
            "RepositoryIndex",
            pb.RepositoryIndexRequest(repository_name="x"),
            "UNIMPLEMENTED",
            "is not supported",
        ),
        load("load", "UNAVAILABLE", NOT_ALLOWED),
        load("load nothing", "UNAVAILABLE", NOT_ALLOWED, model=""),
        load("load of a repository", "UNIMPLEMENTED", "is not supported", repository="x"),
        load(
            "load of a repository, wrong",
            "UNIMPLEMENTED",
            "is not supported",
            repository="x",
            config=HELD["true"],
        ),
        *(
            load(
                f"load with config as {what}",
                "INVALID_ARGUMENT",
                "expected string_param.",
                config=value,
            )
            for what, value in HELD.items()
            if what != "text"
        ),
        load("load with config", "UNAVAILABLE", NOT_ALLOWED, config=HELD["text"]),
        *(
            load(
                f"load with a file as {what}",
                "INVALID_ARGUMENT",
                "expected bytes_param.",
                **{"file:1/model.py": value},
            )
            for what, value in HELD.items()
            if what != "bytes"
        ),
        load("load with a file", "UNAVAILABLE", NOT_ALLOWED, **{"file:1/model.py": HELD["bytes"]}),
        *(
            load(
                f"load with another parameter as {what}",
                "INVALID_ARGUMENT",
                "unrecognized load parameter 'other'.",
                other=value,
            )
            for what, value in HELD.items()
        ),
        unload("unload", "UNAVAILABLE", NOT_ALLOWED),
        unload("unload of a repository", "UNIMPLEMENTED", "is not supported", repository="x"),
        *(
            unload(
                f"unload with dependents as {what}",
                "INVALID_ARGUMENT",
                "expected bool_param.",
                unload_dependents=value,
            )
            for what, value in HELD.items()
            if what != "true"
        ),
        unload(
            "unload with dependents", "UNAVAILABLE", NOT_ALLOWED, unload_dependents=HELD["true"]
        ),
        unload("unload with another parameter", "UNAVAILABLE", NOT_ALLOWED, other=HELD["text"]),
        unload(
            "unload of a repository, wrong",
            "UNIMPLEMENTED",
            "is not supported",
            repository="x",
            unload_dependents=HELD["text"],
        ),
    ),
]
