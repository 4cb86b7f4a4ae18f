"""Settings of the log and of tracing.

Each field occurs valid, missing, with another type, out of range, unknown, and twice.
"""

from __future__ import annotations

from contract.casebook import Case, case, chapter, get, post

LOG = "/v2/logging"
TRACE = "/v2/trace/setting"
MODEL_TRACE = "/v2/models/vector/trace/setting"


DOCUMENTS = {
    "": 500,
    "{": 500,
    "{}": 200,
    "[]": 200,
    "null": 200,
    "1": 200,
    '"text"': 200,
    '{"nothing":1}': 200,
    "{} {}": 500,
}


def table(path: str, bodies: dict[str, int]) -> list[Case]:
    """Write a case for each body."""
    return [
        case(body or "an empty body", post(path, body), status) for body, status in bodies.items()
    ]


def values(path: str, field: str, given: dict[str, int]) -> list[Case]:
    """Write a case for each value of one field."""
    return table(path, {f'{{"{field}":{value}}}': status for value, status in given.items()})


def methods(path: str) -> list[Case]:
    """Write a case for each method that the path does not support, and for forms of the URL."""
    return [
        *(case(f"{word} {path}", get(path, method=word), 405) for word in REFUSED_METHODS),
        case(f"GET {path}", get(path), 200),
        case(f"GET {path} with a query", get(f"{path}?x=1"), 200),
        case(f"GET {path}/", get(f"{path}/"), 404),
    ]


REFUSED_METHODS = ("PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")

FLAG = {
    "true": 200,
    "false": 200,
    "null": 200,
    "0": 500,
    "1": 500,
    "1.0": 500,
    '"true"': 500,
    "[]": 500,
    "{}": 500,
}
LOG_CASES = [
    *chapter("log", *table(LOG, DOCUMENTS), *methods(LOG)),
    *chapter(
        "log file",
        *values(LOG, "log_file", {'"x"': 501, '""': 501, "1": 501, "[]": 501, "null": 200}),
    ),
    *(
        row
        for field in ("log_info", "log_warning", "log_error")
        for row in chapter("log flag", *values(LOG, field, FLAG))
    ),
    *chapter(
        "log level",
        *values(
            LOG,
            "log_verbose_level",
            {
                **{
                    number: 200
                    for number, kept in {
                        "0": 0,
                        "1": 1,
                        "10": 10,
                        "2147483647": 2147483647,
                        "2147483648": 0,
                        "4294967295": 0,
                        "4294967296": 0,
                        "4294967297": 1,
                        "18446744073709551615": 0,
                    }.items()
                },
                "18446744073709551616": 500,
                "-1": 500,
                "1.0": 500,
                '"1"': 500,
                "true": 500,
                "[]": 500,
                "{}": 500,
                "null": 200,
            },
        ),
    ),
    *chapter(
        "log format",
        *values(
            LOG,
            "log_format",
            {
                '"default"': 200,
                '"ISO8601"': 200,
                '"iso8601"': 503,
                '"Default"': 503,
                '""': 503,
                '"\\u00e9\\n\\""': 503,
                "null": 200,
                "1": 500,
                "true": 500,
                "[]": 500,
                "{}": 500,
            },
        ),
    ),
    *chapter(
        "log several",
        *table(
            LOG,
            {
                '{"log_info":true,"log_info":false}': 200,
                '{"log_info":false,"log_info":1}': 200,
                '{"log_info":false,"log_error":1,"log_warning":false}': 500,
                '{"log_warning":1,"log_info":false}': 500,
                '{"log_format":"bad","log_verbose_level":3}': 503,
                '{"log_verbose_level":"x","log_format":"ISO8601"}': 500,
                '{"log_info":false,"log_file":"x"}': 501,
                '{"log_info":false,"other":[{}],"log_format":"ISO8601"}': 200,
            },
        ),
    ),
]

LEVELS = {
    '["OFF"]': 200,
    '["TIMESTAMPS"]': 200,
    '["TENSORS"]': 200,
    '["TENSORS","TIMESTAMPS"]': 200,
    '["TIMESTAMPS","TIMESTAMPS"]': 200,
    '["OFF","TIMESTAMPS"]': 400,
    '["TIMESTAMPS","OFF"]': 400,
    '["OFF","OFF"]': 400,
    '["OFF","other"]': 400,
    '["other"]': 200,
    '["MIN"]': 200,
    '["MAX"]': 200,
    '["timestamps"]': 200,
    '["other","TENSORS"]': 200,
    "[]": 200,
    "null": 200,
    '"OFF"': 500,
    "1": 500,
    "true": 500,
    "{}": 500,
    "[1]": 500,
    "[null]": 500,
    '["TIMESTAMPS",1]': 500,
    '[["TIMESTAMPS"]]': 500,
}
#: Texts of numbers, valid and invalid.
NUMBERS = (
    *('"0"', '"1"', '"-0"', '"2147483647"', '"5x"', '"1.5"', '"1e3"', '"0x10"', '"007"', '" 5"'),
    *('"\\t5 "', '"+5"'),
)
NO_STRINGS = dict.fromkeys(("1", "-1", "true", "[]", '["1"]', "{}"), 500)


def number_cases(path: str, field: str) -> list[Case]:
    """Write the cases of a field that is a number in a string."""
    far = ("2147483648", "4294967295", "-2147483649", "99999999999999999999", "9" * 40)
    negative = 400 if field == "trace_count" else 200
    return values(
        path,
        field,
        {
            **dict.fromkeys(NUMBERS, 200),
            '"-1"': 200,
            '"-2"': negative,
            '"-2147483648"': negative,
            **{f'"{number}"': 400 for number in far},
            '"x"': 400,
            '""': 400,
            '" "': 400,
            '"-"': 400,
            "null": 200,
            **NO_STRINGS,
        },
    )


SEVERAL = {
    '{"trace_rate":"7","trace_rate":"8"}': 200,
    '{"trace_rate":"7","trace_count":"x"}': 400,
    '{"trace_count":"x","trace_rate":"7"}': 400,
    '{"trace_rate":"x","trace_count":1}': 400,
    '{"trace_count":1,"trace_rate":"x"}': 400,
    '{"trace_level":["TIMESTAMPS"],"trace_rate":"x"}': 400,
    '{"log_frequency":"x","trace_level":["OFF","TENSORS"]}': 400,
    '{"trace_rate":1,"trace_level":1}': 500,
    '{"log_frequency":1,"trace_count":"x"}': 400,
    '{"trace_rate":"7","trace_file":"f"}': 501,
    '{"trace_level":"x","trace_file":"f"}': 501,
    '{"trace_level":["TENSORS"],"trace_rate":"3","trace_count":"5","log_frequency":"2"}': 200,
    '{"trace_level":["TENSORS"],"trace_rate":"0"}': 400,
    '{"trace_level":["TENSORS"],"trace_count":"0"}': 400,
    '{"trace_level":["OFF"],"trace_rate":"0","trace_count":"0"}': 200,
}


def trace_cases(title: str, path: str) -> list[Case]:
    """Write the cases of the settings at one path."""
    return [
        *chapter(f"{title} settings", *table(path, DOCUMENTS), *methods(path)),
        *chapter(
            f"{title} file",
            *values(path, "trace_file", dict.fromkeys(('"x"', '""', "null", "1", "[]", "{}"), 501)),
        ),
        *chapter(
            f"{title} mode",
            *values(path, "trace_mode", dict.fromkeys(('"opentelemetry"', "1", "null"), 200)),
        ),
        *chapter(f"{title} level", *values(path, "trace_level", LEVELS)),
        *(
            row
            for field in ("trace_rate", "trace_count", "log_frequency")
            for row in chapter(f"{title} number", *number_cases(path, field))
        ),
        *chapter(f"{title} several", *table(path, SEVERAL)),
    ]


UNKNOWN = "Request for unknown model : nobody"
TRACE_CASES = [
    *trace_cases("trace", TRACE),
    *trace_cases("model trace", MODEL_TRACE),
    *chapter(
        "trace of",
        case("an unknown model", get("/v2/models/nobody/trace/setting"), 400),
        case("an unknown model, set", post("/v2/models/nobody/trace/setting", "{}"), 400),
        case("an unknown model, ill", post("/v2/models/nobody/trace/setting", "{"), 400),
        case(
            "an unknown model, deleted",
            get("/v2/models/nobody/trace/setting", method="DELETE"),
            405,
        ),
        case("an ensemble", get("/v2/models/chain/trace/setting"), 200),
        case("a version", get("/v2/models/vector/versions/1/trace/setting"), 404),
        case("nothing more", get("/v2/models/vector/trace"), 404),
        case("the server, in parts", get("/v2/trace"), 404),
    ),
]
