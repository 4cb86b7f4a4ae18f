"""Log and trace settings, and repository control where it is not allowed.

Each case about settings ends by reading the settings, which are then restored.
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
# The types of values that each setting accepts.
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


def log(**settings):
    return call("LogSettings", pb.LogSettingsRequest(settings=settings))


def trace(model="", **settings):
    values = {name: TraceValue(value=value) for name, value in settings.items()}
    return call("TraceSetting", pb.TraceSettingRequest(model_name=model, settings=values))


def of_log(name, *calls, code="OK"):
    """Write a row about log settings; the settings are restored before the next row."""
    return GrpcCase(name, (log(**KEPT), *calls), code)


def of_trace(name, *calls, code="OK"):
    """Write a row about trace settings; the settings are restored before the next row."""
    cleared = dict.fromkeys(("trace_level", "trace_rate", "trace_count", "log_frequency"), ())
    return GrpcCase(name, (trace(**cleared), trace("vector", **cleared), *calls), code)


def load(name, code, *, model="vector", repository="", **parameters):
    request = pb.RepositoryModelLoadRequest(
        model_name=model, repository_name=repository, parameters=parameters
    )
    return rpc(name, "RepositoryModelLoad", request, code)


def unload(name, code, *, model="vector", repository="", **parameters):
    request = pb.RepositoryModelUnloadRequest(
        model_name=model, repository_name=repository, parameters=parameters
    )
    return rpc(name, "RepositoryModelUnload", request, code)


CASES = [
    *chapter(
        "log settings",
        of_log("read", log()),
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
        ),
    ),
    *chapter(
        "trace settings",
        of_trace("read", trace()),
        of_trace("of a model", trace("vector")),
        of_trace("of an unknown model", trace("nobody"), code="INVALID_ARGUMENT"),
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
        rpc("index", "RepositoryIndex", pb.RepositoryIndexRequest()),
        rpc("index of the ready", "RepositoryIndex", pb.RepositoryIndexRequest(ready=True)),
        rpc(
            "index of a repository",
            "RepositoryIndex",
            pb.RepositoryIndexRequest(repository_name="x"),
            "UNIMPLEMENTED",
        ),
        load("load", "UNAVAILABLE"),
        load("load nothing", "UNAVAILABLE", model=""),
        load("load of a repository", "UNIMPLEMENTED", repository="x"),
        load("load of a repository, wrong", "UNIMPLEMENTED", repository="x", config=HELD["true"]),
        *(
            load(f"load with config as {what}", "INVALID_ARGUMENT", config=value)
            for what, value in HELD.items()
            if what != "text"
        ),
        load("load with config", "UNAVAILABLE", config=HELD["text"]),
        *(
            load(f"load with a file as {what}", "INVALID_ARGUMENT", **{"file:1/model.py": value})
            for what, value in HELD.items()
            if what != "bytes"
        ),
        load("load with a file", "UNAVAILABLE", **{"file:1/model.py": HELD["bytes"]}),
        *(
            load(f"load with another parameter as {what}", "INVALID_ARGUMENT", other=value)
            for what, value in HELD.items()
        ),
        unload("unload", "UNAVAILABLE"),
        unload("unload of a repository", "UNIMPLEMENTED", repository="x"),
        *(
            unload(f"unload with dependents as {what}", "INVALID_ARGUMENT", unload_dependents=value)
            for what, value in HELD.items()
            if what != "true"
        ),
        unload("unload with dependents", "UNAVAILABLE", unload_dependents=HELD["true"]),
        unload("unload with another parameter", "UNAVAILABLE", other=HELD["text"]),
        unload(
            "unload of a repository, wrong",
            "UNIMPLEMENTED",
            repository="x",
            unload_dependents=HELD["text"],
        ),
    ),
]
