"""Scripts of repository control: each uses models of its own, step by step."""

from __future__ import annotations

import json
from typing import Any

from contract.control_scripts import (
    ALL_VERSIONS,
    BROKEN,
    DEPENDENTS,
    SYNTAX,
    VECTOR,
    VECTOR_JSON,
    Script,
    Session,
    Step,
    appears,
    ask,
    at_last,
    begin,
    call,
    counts,
    end,
    ensemble,
    files,
    get,
    goes,
    gone,
    index,
    infer,
    is_a_file,
    is_touched,
    load,
    load_with,
    parameter,
    script,
    state,
    times,
    unload,
)
from contract.json_forms import READ, READ_BY_TRITON, READ_HERE, REFUSED, SHOWN, unserved
from support.waiting import until
from tritonclient.grpc import service_pb2 as pb

INDEX = "/v2/repository/index"
WITH_PARAMETER = VECTOR_JSON | {"parameters": {"k": {"string_value": "v"}}}
# Records that it executes, and answers when the file `end` exists.
BUSY = times(
    1,
    initialize='self.folder = args["model_repository"]',
    before="""open(self.folder + "/begun", "w").close()
        while not os.path.exists(self.folder + "/end"): time.sleep(0.01)""",
)
# Starts when the file `go` exists.
HELD = times(
    1,
    initialize='while not os.path.exists(args["model_repository"] + "/go"): time.sleep(0.01)',
)
SLOW_TO_START = times(1, initialize="time.sleep(1)")
TELLS_FOLDER = times(1, initialize='raise RuntimeError(str(args["model_repository"]))')


def config(**fields: Any) -> str:
    """Return the vector model's config as JSON, with these fields."""
    return json.dumps(VECTOR_JSON | fields)


def statuses(model: str, status: int) -> list[Step]:
    """Read all pages of a model."""
    return [
        get(f"{model}/ready", 200 if status == 200 else 400),
        get(model, status),
        get(f"{model}/config", status),
        infer(model, status),
        counts(model, 1 if status == 200 else None),
    ]


def repaired(model: str = "@m") -> list[Step]:
    """Return steps that repair a model, and load it."""
    return [files(model, VECTOR, {1: times(3)}), load(model, 200), infer(model, 200), index()]


EXPLICIT: list[Script] = [
    script(
        "life of a model",
        files("@m"),
        index(),
        *statuses("@m", 404),
        load("@m", 200),
        index(),
        index({"ready": True}),
        *statuses("@m", 200),
        load("@m", 200),
        counts("@m", 1),
        unload("@m"),
        index(),
        index({"ready": True}),
        *statuses("@m", 404),
        get("@m/versions/1", 503),
        get("@m/versions/1/config", 503),
        get("@m/versions/1/ready", 400),
        get("@m/versions/2/config", 404),
        get("@m/versions/2/ready", 400),
        infer("@m/1", 503),
        infer("@m/2", 404),
        ask("GET", "/v2/models/@m/versions/1/stats", 400),
        unload("@m"),
        index(),
        load("@m", 200),
        counts("@m", 0),
        infer("@m", 200),
    ),
    script(
        "names",
        files("@m"),
        files("@empty", None, {}),
        is_a_file("@file"),
        load("@nobody", 500),
        unload("@nobody"),
        load("@file", 500),
        load("@empty", 500),
        load("@m%2F1", 500),
        load(".", 500),
        load("..", 400),
        load("@m/1", 404),
        load("", 404),
        unload(".."),
        unload("@m/1", 404),
        unload("", 404),
        index(),
    ),
    script(
        "routes",
        files("@m"),
        *(
            ask(method, path, 405)
            for path in (INDEX, "/v2/repository/models/@m/load", "/v2/repository/models/@m/unload")
            for method in ("GET", "HEAD", "PUT", "DELETE")
        ),
        ask("GET", "/v2/repository/x/index", 405),
        ask("GET", "/v2/repository/x/models/@m/load", 405),
        ask("POST", "/v2/repository/x/models/@m/load", 501),
        ask("POST", "/v2/repository/x/models/@m/load", 501, b"{}"),
        ask("POST", "/v2/repository/x/models/@m/unload", 501),
        ask("POST", "/v2/repository", 404),
        ask("POST", "/v2/repository/", 404),
        ask("POST", "/v2/repository/index/", 404),
        ask("POST", "/v2/repository/x/y/index", 404),
        ask("POST", "/v2/repository/models/@m", 404),
        ask("POST", "/v2/repository/models/load", 404),
        ask("POST", "/v2/repository/models/@m/reload", 404),
        ask("POST", "/v2/repository/models/@m/versions/1/load", 404),
        index(),
    ),
    script(
        "bodies of an index request",
        files("@m"),
        load("@m", 200),
        *(ask("POST", INDEX, 500, body) for body in (b"{", b"{]", b'{"ready":1}', b"x", b" ")),
        ask("POST", INDEX, 500, b'{"ready":null}'),
        ask("POST", INDEX, 500, b'{"ready":"true"}'),
        *(index(body) for body in (b"[]", b"null", b"{}", b'"x"', b'{"x":1}', b'{"Ready":true}')),
        index({"ready": True}),
        index({"ready": False}),
        index(b'{"ready":true,"ready":1}'),
    ),
    script(
        "bodies of a load request",
        files("@m"),
        *(load("@m", 500, body) for body in (b"{", b'{"parameters":}', b"x")),
        *(
            load("@m", 500, {"parameters": value})
            for value in (1, [], None, "x", True, {"x": 1}, {"x": "1"}, {"config": 1})
        ),
        load("@m", 500, {"parameters": {"config": None}}),
        load("@m", 500, {"parameters": {"config": VECTOR_JSON}}),
        load("@m", 500, {"parameters": {"config": config(), "x": "y"}}),
        load("@m", 500, {"parameters": {"x": "y", "config": 1}}),
        load("@m", 500, {"parameters": {"Config": "{}"}}),
        load("@m", 500, {"parameters": {"file:1/model.py": 1}}),
        load("@m", 500, {"parameters": {"file": "eA=="}}),
        index(),
        load("@m", 200, b"[]"),
        *(load("@m", 200, body) for body in (b"null", b"{}", b'"x"', b'{"x":1}', b"7")),
        load("@m", 200, {"parameters": {}}),
        load("@m", 200, {"Parameters": {"config": 1}}),
        load("@m", 200, b'{"parameters":{},"parameters":1}'),
        index(),
    ),
    script(
        "bodies of an unload request",
        files("@m"),
        *(
            step
            for body in (
                *(b"{", b"[]", b"null", b"x", b'{"parameters":1}', b'{"parameters":null}'),
                *(b'{"parameters":{"unload_dependents":1}}', b'{"parameters":{"x":1}}'),
                *(b'{"parameters":{"unload_dependents":"true"}}', b'{"x":1}'),
            )
            for step in (load("@m", 200), unload("@m", 200, body), index())
        ),
    ),
    *(
        script(
            f"fails: {what}",
            files("@m", text, versions),
            load("@m", status),
            index(),
            get("@m/ready", 400),
            infer("@m", 404),
            load("@m", status),
            index(),
            *repaired(),
        )
        for what, text, versions, status in (
            ("syntax", VECTOR, {1: SYNTAX}, 400),
            ("initialize", VECTOR, {1: BROKEN}, 400),
            ("import", VECTOR, {1: "raise ValueError('no')"}, 400),
            ("no class", VECTOR, {1: "x = 1"}, 400),
            ("misspelt field", "max_batch_sise: 8", None, 500),
            ("another name", VECTOR + 'name: "other"', None, 500),
            ("negative batch", VECTOR + "max_batch_size: -1", None, 500),
            ("no data type", 'backend: "python" input { name: "X" dims: [1] }', None, 400),
            ("no dims", 'backend: "python" input { name: "X" data_type: TYPE_FP32 }', None, 400),
            ("kind GPU", VECTOR + "instance_group { kind: KIND_GPU }", None, 400),
            ("unknown backend", VECTOR.replace('"python"', '"nope"'), None, 400),
            ("no version", VECTOR, {}, 400),
            ("policy", VECTOR + "version_policy { specific { versions: [9] } }", None, 400),
        )
    ),
    script(
        "both versions fail",
        files("@m", ALL_VERSIONS, {1: BROKEN, 2: SYNTAX}),
        load("@m", 400),
        index(),
        files("@m", ALL_VERSIONS, {1: times(1), 2: times(2)}),
        load("@m", 200),
        index(),
        infer("@m", 200),
    ),
    script(
        "one version of two fails",
        files("@m", ALL_VERSIONS, {1: times(1), 2: BROKEN}),
        load("@m", 400),
        index(),
        infer("@m", 404),
        infer("@m/1", 503),
        counts("@m"),
        files("@m", None, {2: times(2)}),
        load("@m", 200),
        index(),
        infer("@m", 200),
        infer("@m/1", 200),
    ),
    script(
        "versions come and go",
        files("@m", ALL_VERSIONS, {1: times(1), 2: times(2)}),
        load("@m", 200),
        infer("@m", 200),
        files("@m", None, {3: times(3)}),
        load("@m", 200),
        index(),
        infer("@m", 200),
        infer("@m/2", 200),
        goes("1"),
        load("@m", 200),
        index(),
        infer("@m/1", 503),
        get("@m/versions/1/stats", 400),
        get("@m", 200),
        files("@m", VECTOR, {}),
        load("@m", 200),
        index(),
        get("@m", 200),
        files("@m", VECTOR + "version_policy { specific { versions: [2] } }", {}),
        load("@m", 200),
        index(),
        infer("@m", 200),
        infer("@m/3", 503),
        unload("@m"),
        index(),
    ),
    script(
        "loading again",
        files("@m", VECTOR, {1: times(1)}),
        load("@m", 200),
        infer("@m", 200),
        load("@m", 200),
        counts("@m", 1),
        is_touched("config.pbtxt"),
        load("@m", 200),
        counts("@m", 1),
        is_touched("1/model.py"),
        load("@m", 200),
        counts("@m", 0),
        files("@m", None, {1: times(5)}),
        infer("@m", 200),
        load("@m", 200),
        infer("@m", 200),
        files("@m", None, {}, extra="x"),
        load("@m", 200),
        counts("@m", 0),
        files("@m", VECTOR + 'parameters { key: "k" value { string_value: "v" } }', {}),
        load("@m", 200),
        get("@m/config", 200),
        counts("@m", 0),
    ),
    *(
        script(
            f"loading again fails: {what}",
            files("@m"),
            files("@e", ensemble("@m"), {1: None}),
            load("@m", 200),
            load("@e", 200),
            files("@m", text, versions),
            load("@m", status),
            index(),
            infer("@m", 200),
            infer("@e", 200, "I"),
            load("@m", status),
            *repaired(),
            infer("@e", 200, "I"),
        )
        for what, text, versions, status in (
            ("syntax", None, {1: SYNTAX}, 400),
            ("initialize", None, {1: BROKEN}, 400),
            ("misspelt field", "max_batch_sise: 8", {}, 500),
            ("another name", VECTOR + 'name: "other"', {}, 500),
            ("kind GPU", VECTOR + "instance_group { kind: KIND_GPU }", {1: times(1)}, 400),
            ("policy", VECTOR + "version_policy { specific { versions: [9] } }", {}, 400),
        )
    ),
    script(
        "only the instances change",
        files("@m"),
        load("@m", 200),
        infer("@m", 200),
        files("@m", VECTOR + "instance_group { count: 2 }", {}),
        load("@m", 200),
        counts("@m", 1),
        get("@m/config", 200),
        infer("@m", 200),
        files("@m", VECTOR + "instance_group { count: 1 }", {}),
        load("@m", 200),
        counts("@m", 2),
        files("@m", VECTOR + "instance_group { kind: KIND_GPU }", {}),
        load("@m", 400),
        index(),
        infer("@m", 200),
        counts("@m", 3),
    ),
    script(
        "the folder goes",
        files("@m"),
        load("@m", 200),
        goes(),
        load("@m", 500),
        infer("@m", 200),
        get("@m/ready", 200),
        unload("@m"),
        gone("@m"),
        infer("@m", 404),
        index(),
        *repaired(),
    ),
    script(
        "another config",
        files("@m"),
        load_with("@m", 200, WITH_PARAMETER),
        get("@m/config", 200),
        infer("@m", 200),
        load_with("@m", 200, WITH_PARAMETER),
        counts("@m", 1),
        load("@m", 200),
        counts("@m", 1),
        get("@m/config", 200),
        files("@m", None, {1: times(2)}),
        load("@m", 200),
        get("@m/config", 200),
        infer("@m", 200),
        *(
            load_with("@m", 500, text)
            for text in (
                *("", "{", "[]", "null", "x", config(nope=1), config(name="other")),
                *(config(max_batch_size=-1), config(max_batch_size="x"), config(input=1)),
                config(input=[{"name": "X", "data_type": "TYPE_NOPE", "dims": [1]}]),
            )
        ),
        index(),
        infer("@m", 200),
        load_with("@m", 200, config(maxBatchSize=3)),
        get("@m/config", 200),
        load_with("@m", 200, config(max_batch_size="4")),
        get("@m/config", 200),
        load_with("@m", 200, config(name="@m")),
        load_with("@m", 400, config(input=[{"name": "X", "dims": [1]}])),
        infer("@m", 200),
        load_with("@m", 400, config(instance_group=[{"kind": "KIND_GPU"}])),
        load_with("@m", 200, config(version_policy={"all": {}})),
        load_with("@m", 400, config(version_policy={"specific": {"versions": [5]}})),
        infer("@m", 200),
        unload("@m"),
        index(),
        load("@m", 200),
        get("@m/config", 200),
        load_with("@nobody", 500, VECTOR_JSON),
    ),
    script(
        "configurations in JSON",
        files("@m"),
        *(load_with("@m", 400, unserved(text)) for text in READ.values()),
        *(load_with("@m", 500, unserved(text)) for text in REFUSED.values()),
        *(
            step
            for name in SHOWN
            for step in (load_with("@m", 200, READ[name]), get("@m/config", 200))
        ),
    ),
    script(
        "JSON that one server reads",
        files("@m"),
        *(load_with("@m", 400, unserved(text)) for text in READ_BY_TRITON.values()),
        *(load_with("@m", 500, unserved(text)) for text in READ_HERE.values()),
    ),
    script(
        "other files",
        files("@m"),
        load("@m", 200),
        load_with("@m", 500, None, **{"1/model.py": times(5)}),
        load_with("@m", 200, WITH_PARAMETER, **{"1/model.py": times(5)}),
        infer("@m", 200),
        index(),
        load("@m", 200),
        infer("@m", 200),
        get("@m/config", 200),
        unload("@m"),
        index(),
        load("@m", 200),
        infer("@m", 200),
        load_with("@m", 400, WITH_PARAMETER, **{"1/model.py": TELLS_FOLDER}),
        infer("@m", 200),
        load_with("@m", 400, WITH_PARAMETER, **{"1/model.py": SYNTAX}),
        index(),
        infer("@m", 200),
    ),
    script(
        "files alone",
        load_with("@v", 200, VECTOR_JSON, **{"1/model.py": times(5)}),
        infer("@v", 200),
        get("@v/ready", 200),
        index(),
        load("@v", 500),
        infer("@v", 200),
        unload("@v"),
        gone("@v"),
        infer("@v", 404),
        infer("@v/1", 503),
        load("@v", 500),
        load_with(
            "@v",
            200,
            config(version_policy={"all": {}}),
            **{"1/model.py": times(5), "3/model.py": times(7)},
        ),
        infer("@v", 200),
        infer("@v/1", 200),
        load_with("@w", 400, VECTOR_JSON, **{"model.py": times(5)}),
        load_with("@x", 400, VECTOR_JSON, **{"1/model.py": TELLS_FOLDER}),
        load_with("@y", 500, config(name="other"), **{"1/model.py": times(5)}),
        load_with("@z", 500, None, **{"1/model.py": times(5)}),
    ),
    *(
        script(
            f"path of a file: {path!r}",
            load_with("@v", status, VECTOR_JSON, **{"1/model.py": times(5), path: "hello"}),
            *([infer("@v", 200)] if status == 200 else [infer("@v", 404)]),
        )
        for path, status in (
            *(("../escape", 500), ("1/../../escape", 500), ("", 500), ("1", 500), ("1/", 500)),
            *(("/tmp/escape", 200), ("config.pbtxt", 200), ("a/b/c.txt", 200), ("1//x", 200)),
            *(("./1/x", 200), ("1/model.py/x", 500)),
        )
    ),
    script(
        "ensembles",
        files("@m"),
        files("@e", ensemble("@m", "@m"), {1: None}),
        files("@f", ensemble("@e", tensors=("I", "O")), {1: None}),
        load("@e", 200),
        index(),
        infer("@e", 200, "I"),
        infer("@f", 404, "I"),
        unload("@e"),
        index(),
        load("@e", 200),
        unload("@m"),
        index(),
        infer("@e", 404, "I"),
        infer("@e/1", 503, "I"),
        load("@e", 200),
        index(),
        unload("@e", 200, DEPENDENTS),
        index(),
        load("@f", 200),
        index(),
        infer("@f", 200, "I"),
        unload("@e"),
        index(),
        load("@f", 200),
        unload("@m"),
        index(),
        load("@m", 200),
        index(),
        load("@e", 200),
        load("@m", 200),
        unload("@f", 200, DEPENDENTS),
        index(),
    ),
    script(
        "what was asked for stays",
        files("@m"),
        files("@n"),
        files("@e", ensemble("@m", "@n"), {1: None}),
        files("@f", ensemble("@n"), {1: None}),
        load("@m", 200),
        load("@e", 200),
        load("@f", 200),
        unload("@e", 200, DEPENDENTS),
        index(),
        unload("@m", 200, DEPENDENTS),
        index(),
        unload("@f", 200, DEPENDENTS),
        index(),
    ),
    *(
        script(
            f"ensemble fails: {what}",
            files("@m"),
            files("@broken", VECTOR, {1: BROKEN}),
            files("@typo", "max_batch_sise: 8"),
            files("@empty", VECTOR, {}),
            files("@e", text, {1: None}),
            load("@e", status),
            index(),
            infer("@e", 404, "I"),
            load("@e", again),
            index(),
            load("@m", 200),
            load("@e", again),
        )
        for what, text, status, again in (
            ("nobody", ensemble("@nobody"), 400, 500),
            ("two nobodies", ensemble("@m", "@nobody"), 400, 500),
            ("misspelt step", ensemble("@typo"), 400, 500),
            ("broken step", ensemble("@m", "@broken"), 400, 400),
            ("step without version", ensemble("@empty"), 400, 400),
            ("version of a step", ensemble("@m", version=7), 400, 500),
            ("unknown input", ensemble("@m", tensors=("Z", "Y")), 400, 500),
            ("unknown output", ensemble("@m", tensors=("X", "Z")), 400, 500),
            ("itself", ensemble("@e", tensors=("I", "O")), 400, 500),
            ("no step", ensemble().replace("ensemble_scheduling {  }", ""), 500, 500),
            ("type", ensemble("@m").replace("TYPE_FP32", "TYPE_INT32"), 400, 500),
        )
    ),
    script(
        "ensembles follow their steps",
        files("@m", VECTOR, {1: times(2)}),
        files("@e", ensemble("@m", "@m"), {1: None}),
        load("@e", 200),
        infer("@e", 200, "I"),
        counts("@e", 1),
        files("@m", None, {1: times(3)}),
        load("@e", 200),
        infer("@e", 200, "I"),
        counts("@e", 1),
        files("@m", None, {1: times(5)}),
        load("@m", 200),
        infer("@e", 200, "I"),
        index(),
        files("@m", VECTOR.replace("FP32", "INT32"), {}),
        load("@m", 200),
        index(),
        infer("@e", 404, "I"),
        files("@m", VECTOR, {}),
        load("@m", 200),
        index(),
        infer("@e", 200, "I"),
    ),
    script(
        "a new ensemble in the place of an old one",
        files("@m", VECTOR, {1: times(2)}),
        files("@e", ensemble("@m"), {1: None}),
        load("@e", 200),
        files("@e", ensemble("@m", "@m"), {}),
        load("@e", 200),
        infer("@e", 200, "I"),
        files("@e", ensemble("@nobody"), {}),
        load("@e", 400),
        index(),
        infer("@e", 404, "I"),
        files("@e", ensemble("@m"), {}),
        load("@e", 200),
        infer("@e", 200, "I"),
    ),
    script(
        "requests in flight",
        files("@m", VECTOR, {1: BUSY}),
        load("@m", 200),
        begin(infer("@m", 200)),
        appears("begun"),
        unload("@m"),
        state("@m", "UNLOADING"),
        get("@m/ready", 400),
        get("@m/versions/1/config", 503),
        counts("@m"),
        infer("@m/1", 503),
        files("@m", None, {}, end=""),
        end(infer("@m", 200)),
        index(),
    ),
    script(
        "loading while the old one has requests in flight",
        files("@m", VECTOR, {1: BUSY}),
        load("@m", 200),
        begin(infer("@m", 200)),
        appears("begun"),
        files("@m", None, {1: times(7)}),
        load("@m", 200),
        infer("@m/1", 200),
        files("@m", None, {}, end=""),
        end(infer("@m", 200)),
        index(),
        counts("@m", 1),
    ),
    script(
        "while it loads",
        files("@m", VECTOR, {1: HELD}),
        begin(load("@m", 200)),
        state("@m", "LOADING"),
        get("@m/ready", 400),
        get("@m/config", 404),
        get("@m/versions/1/config", 503),
        counts("@m"),
        infer("@m", 404),
        begin(unload("@m")),
        files("@m", None, {}, go=""),
        end(load("@m", 200)),
        end(unload("@m")),
        index(),
    ),
    script(
        "loads of one model and of others",
        files("@m", VECTOR, {1: SLOW_TO_START}),
        files("@n"),
        begin(load("@m", 200)),
        begin(load("@n", 200)),
        end(load("@n", 200)),
        load("@m", 200),
        end(load("@m", 200)),
        index(),
        infer("@m", 200),
    ),
    script(
        "gRPC",
        files("@m"),
        call("RepositoryIndex", pb.RepositoryIndexRequest()),
        call("RepositoryIndex", pb.RepositoryIndexRequest(repository_name="x"), "UNIMPLEMENTED"),
        call("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="@m")),
        call("RepositoryIndex", pb.RepositoryIndexRequest(ready=True)),
        *(
            call("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name=name), "INTERNAL")
            for name in ("@nobody", "", ".", "../x", "@m/1", "/")
        ),
        call(
            "RepositoryModelLoad",
            pb.RepositoryModelLoadRequest(
                model_name="@m",
                repository_name="r",
                parameters={"config": parameter(int64_param=1)},
            ),
            "UNIMPLEMENTED",
        ),
        *(
            call(
                "RepositoryModelLoad",
                pb.RepositoryModelLoadRequest(model_name="@m", parameters={name: value}),
                code,
            )
            for name, value, code in (
                ("x", parameter(string_param="1"), "INVALID_ARGUMENT"),
                ("config", parameter(int64_param=1), "INVALID_ARGUMENT"),
                ("config", parameter(bool_param=True), "INVALID_ARGUMENT"),
                ("config", parameter(bytes_param=b"{}"), "INVALID_ARGUMENT"),
                ("config", parameter(), "INVALID_ARGUMENT"),
                ("config", parameter(string_param="{"), "INTERNAL"),
                ("file:1/model.py", parameter(string_param="x"), "INVALID_ARGUMENT"),
                ("file:1/model.py", parameter(), "INVALID_ARGUMENT"),
                ("file:1/model.py", parameter(bytes_param=b"x"), "INTERNAL"),
                ("config", parameter(string_param=config(**WITH_PARAMETER)), "OK"),
            )
        ),
        get("@m/config", 200),
        call(
            "RepositoryModelLoad",
            pb.RepositoryModelLoadRequest(
                model_name="@v",
                parameters={
                    "config": parameter(string_param=config()),
                    "file:1/model.py": parameter(bytes_param=times(9).encode()),
                },
            ),
        ),
        infer("@v", 200),
        *(
            call(
                "RepositoryModelUnload",
                pb.RepositoryModelUnloadRequest(
                    model_name="@m", repository_name=repository, parameters=given
                ),
                code,
            )
            for repository, given, code in (
                ("r", {}, "UNIMPLEMENTED"),
                ("r", {"unload_dependents": parameter()}, "UNIMPLEMENTED"),
                ("", {"unload_dependents": parameter(string_param="x")}, "INVALID_ARGUMENT"),
                ("", {"unload_dependents": parameter()}, "INVALID_ARGUMENT"),
            )
        ),
        infer("@m", 200),
        call(
            "RepositoryModelUnload",
            pb.RepositoryModelUnloadRequest(
                model_name="@m", parameters={"x": parameter(int64_param=1)}
            ),
        ),
        call("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="@nobody")),
        call("RepositoryModelUnload", pb.RepositoryModelUnloadRequest()),
        index(),
    ),
]

#: The categories of the restricted servers, each with a different header. Metadata is not
#: restricted, so that a page can show that the server is ready.
RESTRICTIONS = {
    "health": "h=1",
    "inference": "i=1",
    "shared-memory": "s=1",
    "model-config": "c=1",
    "model-repository": "adm=a=b:c",
    "statistics": "st=1",
    "trace,logging": "t=1",
}
RESTRICTED_PATHS = [
    *("/v2/health/live", "/v2/health/ready", "/v2/models/m/ready"),
    *("/v2/models/m/config", "/v2/models/m/infer", "/v2/models/m/generate"),
    *("/v2/models/m/generate_stream", INDEX, "/v2/repository/x/index"),
    *("/v2/repository/models/m/load", "/v2/repository/models/m/unload"),
    *("/v2/systemsharedmemory/status", "/v2/cudasharedmemory/status"),
    *("/v2/systemsharedmemory/region/x/register", "/v2/cudasharedmemory/region/x/unregister"),
    *("/v2/trace/setting", "/v2/models/m/trace/setting", "/v2/logging", "/v2/models/stats"),
    *("/v2/models/m/stats", "/v2/models/m/versions/99999999999999999999/config"),
]
LOAD_M = "/v2/repository/models/m/load"
UNLOAD_M = "/v2/repository/models/m/unload"
ADMIN = {"adm": "a=b:c"}

#: Scripts on servers with the control mode `none` and restricted operations.
RESTRICTED: list[Script] = [
    script(
        "restricted",
        *(ask(method, path, 403) for path in RESTRICTED_PATHS for method in ("GET", "POST")),
        ask("GET", "/v2/nothing", 404),
        ask("GET", "/v2/models/m/nothing", 404),
        ask("GET", "/v2/health/live", 200, h="1"),
        ask("GET", "/v2/health/live", 200, H="1"),
        ask("GET", "/v2/health/live", 403, h="2"),
        ask("GET", "/v2/health/live", 403, h=""),
        ask("GET", "/v2/health/live", 403, h="11"),
        ask("POST", "/v2/health/live", 405, h="1"),
        ask("GET", "/v2/models/m", 200),
        ask("GET", "/v2/models/m/config", 403, h="1"),
        ask("GET", "/v2/models/m/config", 200, c="1"),
        ask("POST", INDEX, 403, adm="a=B:c"),
        ask("POST", INDEX, 403, adm="a"),
    ),
    script(
        "not explicit",
        ask("POST", INDEX, 200, **ADMIN),
        ask("POST", LOAD_M, 503, **ADMIN),
        ask("POST", UNLOAD_M, 503, **ADMIN),
        ask("POST", LOAD_M, 500, b"{", **ADMIN),
        ask("POST", LOAD_M, 500, {"parameters": 1}, **ADMIN),
        ask("POST", UNLOAD_M, 503, b"{", **ADMIN),
        ask("POST", LOAD_M.replace("/m/", "/nobody/"), 503, **ADMIN),
        ask("POST", UNLOAD_M.replace("/m/", "/nobody/"), 503, **ADMIN),
        ask("POST", LOAD_M.replace("repository", "repository/x"), 501, **ADMIN),
        ask("POST", UNLOAD_M.replace("repository", "repository/x"), 501, **ADMIN),
    ),
    script(
        "restricted gRPC",
        *(
            call(rpc, request, "UNAVAILABLE")
            for rpc, request in (
                ("ServerLive", pb.ServerLiveRequest()),
                ("ModelReady", pb.ModelReadyRequest(name="m")),
                ("ModelConfig", pb.ModelConfigRequest(name="m")),
                ("ModelStatistics", pb.ModelStatisticsRequest(name="m")),
                ("ModelInfer", pb.ModelInferRequest(model_name="m")),
                ("RepositoryIndex", pb.RepositoryIndexRequest()),
                ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="m")),
                ("SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest()),
                ("CudaSharedMemoryStatus", pb.CudaSharedMemoryStatusRequest()),
                ("TraceSetting", pb.TraceSettingRequest()),
                ("LogSettings", pb.LogSettingsRequest()),
            )
        ),
        call("ServerLive", pb.ServerLiveRequest(), **{"triton-grpc-protocol-h": "1"}),
        call(
            "ServerLive", pb.ServerLiveRequest(), "UNAVAILABLE", **{"triton-grpc-protocol-h": "2"}
        ),
        call("ServerLive", pb.ServerLiveRequest(), "UNAVAILABLE", h="1"),
        call(
            "RepositoryModelLoad",
            pb.RepositoryModelLoadRequest(model_name="m"),
            "UNAVAILABLE",
            **{"triton-grpc-protocol-adm": "a=b:c"},
        ),
    ),
]

INFER_P = "/v2/models/p/infer"
ASKS_P: dict[str, Any] = {
    "inputs": [{"name": "X", "datatype": "BYTES", "shape": [1], "data": ["a"]}]
}
SENT = {"X-Foo": "1", "x-low": "two", "Content-X-a": "3", "Other": "x"}

#: Scripts on servers that forward headers named `X-.*` to models that return their parameters.
FORWARDED: list[Script] = [
    script(
        "forwarded headers",
        ask("POST", INFER_P, 200, ASKS_P),
        ask("POST", INFER_P, 200, ASKS_P, **SENT),
        ask("POST", INFER_P, 200, ASKS_P | {"parameters": {"b": 1, "a": "z"}}, **SENT),
        ask("POST", INFER_P, 200, ASKS_P, **{"X-triton_a": "1", "X-priority": "7"}),
        ask("POST", INFER_P, 200, ASKS_P, priority="7", timeout="x"),
        ask("POST", INFER_P, 200, b"", **{"Inference-Header-Content-Length": "0"} | SENT),
        ask("POST", "/v2/models/p/generate", 200, {"X": "a", "q": 7}, **SENT),
    ),
]


def looks_fail(model: str) -> Step:
    """Wait until the log reports a model's invalid files twice: a whole poll is then complete."""

    def play(session: Session) -> str:
        told = f"Poll failed for model directory '{session.named(model)}'"
        until(lambda: session.server.log.count(told) >= 2)
        return ""

    return Step(f"a look at {model} fails", play, ("a look fails", model))


#: Scripts on servers that poll the files.
POLLED: list[Script] = [
    script(
        "files are followed",
        index(),
        load("@m", 503),
        files("@m"),
        state("@m", "READY"),
        infer("@m", 200),
        files("@e", ensemble("@m"), {1: None}),
        state("@e", "READY"),
        infer("@e", 200, "I"),
        files("@m", "max_batch_sise: 8", {}),
        looks_fail("@m"),
        infer("@m", 200),
        index({"ready": True}),
        files("@m", VECTOR, {1: times(4)}),
        at_last(infer("@m", 200), "[8.0]"),
        at_last(infer("@e", 200, "I"), "[8.0]"),
        goes(),
        state("@e", "UNAVAILABLE"),
        at_last(infer("@m", 404), "404 "),
        at_last(infer("@m/1", 503), "503 "),
        index(),
        infer("@e", 404, "I"),
    ),
]
