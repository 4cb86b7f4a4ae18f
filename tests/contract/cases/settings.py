"""Settings of the log and of tracing.

Each field: right, missing, of another type, out of range, unknown, twice.
"""

from __future__ import annotations

from contract.casebook import Case, case, chapter, get, post

LOG = "/v2/logging"
TRACE = "/v2/trace/setting"
MODEL_TRACE = "/v2/models/vector/trace/setting"

BOOL = "attempt to access JSON non-boolean as boolean"
UINT = "attempt to access JSON non-unsigned-integer as unsigned-integer"
STRING = "attempt to access JSON non-string as string"
ARRAY = "attempt to access JSON non-array as array"
EMPTY = "The document is empty. at 0"
LOG_FILE = "log file location can not be updated through network protocol"
TRACE_FILE = "trace file location can not be updated through network protocol"
ONE_OFF = "Expect only one trace level 'OFF' is specified"
INVALID = "Attempting to set invalid trace setting :"
UINT_RANGE = "value is out of range [ 0, 4294967295 ], got: "

DOCUMENTS = {
    "": (500, EMPTY),
    "{": (500, "Missing a name for object member. at 1"),
    "{}": (200, ""),
    "[]": (200, ""),
    "null": (200, ""),
    "1": (200, ""),
    '"text"': (200, ""),
    '{"nothing":1}': (200, ""),
    "{} {}": (500, "must not be followed by other values. at 3"),
}


def table(path: str, bodies: dict[str, tuple[int, str]]) -> list[Case]:
    """Write a case for each body."""
    return [
        case(body or "an empty body", post(path, body), *expected)
        for body, expected in bodies.items()
    ]


def values(path: str, field: str, given: dict[str, tuple[int, str]]) -> list[Case]:
    """Write a case for each value of one field."""
    return table(path, {f'{{"{field}":{value}}}': expected for value, expected in given.items()})


def methods(path: str) -> list[Case]:
    """Write a case for each method that is none of the path's, and for forms of the URL."""
    return [
        *(case(f"{word} {path}", get(path, method=word), 405) for word in REFUSED_METHODS),
        case(f"GET {path}", get(path), 200),
        case(f"GET {path} with a query", get(f"{path}?x=1"), 200),
        case(f"GET {path}/", get(f"{path}/"), 404),
    ]


REFUSED_METHODS = ("PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")

FLAG = {
    "true": (200, ""),
    "false": (200, ""),
    "null": (200, ""),
    "0": (500, BOOL),
    "1": (500, BOOL),
    "1.0": (500, BOOL),
    '"true"': (500, BOOL),
    "[]": (500, BOOL),
    "{}": (500, BOOL),
}
LOG_CASES = [
    *chapter("log", *table(LOG, DOCUMENTS), *methods(LOG)),
    *chapter(
        "log file",
        *values(
            LOG,
            "log_file",
            {
                '"x"': (501, LOG_FILE),
                '""': (501, LOG_FILE),
                "1": (501, LOG_FILE),
                "[]": (501, LOG_FILE),
                "null": (200, ""),
            },
        ),
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
                    number: (200, f'"log_verbose_level":{kept}')
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
                "18446744073709551616": (500, UINT),
                "-1": (500, UINT),
                "1.0": (500, UINT),
                '"1"': (500, UINT),
                "true": (500, UINT),
                "[]": (500, UINT),
                "{}": (500, UINT),
                "null": (200, ""),
            },
        ),
    ),
    *chapter(
        "log format",
        *values(
            LOG,
            "log_format",
            {
                '"default"': (200, '"log_format":"default"'),
                '"ISO8601"': (200, '"log_format":"ISO8601"'),
                '"iso8601"': (503, "invalid argument for --log_format, got: iso8601"),
                '"Default"': (503, "got: Default"),
                '""': (503, "got: "),
                '"\\u00e9\\n\\""': (503, "got: é"),
                "null": (200, ""),
                "1": (500, STRING),
                "true": (500, STRING),
                "[]": (500, STRING),
                "{}": (500, STRING),
            },
        ),
    ),
    *chapter(
        "log several",
        *table(
            LOG,
            {
                '{"log_info":true,"log_info":false}': (200, '"log_info":true'),
                '{"log_info":false,"log_info":1}': (200, '"log_info":false'),
                '{"log_info":false,"log_error":1,"log_warning":false}': (500, BOOL),
                '{"log_warning":1,"log_info":false}': (500, BOOL),
                '{"log_format":"bad","log_verbose_level":3}': (503, "got: bad"),
                '{"log_verbose_level":"x","log_format":"ISO8601"}': (500, UINT),
                '{"log_info":false,"log_file":"x"}': (501, LOG_FILE),
                '{"log_info":false,"other":[{}],"log_format":"ISO8601"}': (200, '"ISO8601"'),
            },
        ),
    ),
]

LEVELS = {
    '["OFF"]': (200, ""),
    '["TIMESTAMPS"]': (200, '"trace_level":["TIMESTAMPS"]'),
    '["TENSORS"]': (200, '"trace_level":["TENSORS"]'),
    '["TENSORS","TIMESTAMPS"]': (200, '"trace_level":["TIMESTAMPS","TENSORS"]'),
    '["TIMESTAMPS","TIMESTAMPS"]': (200, '"trace_level":["TIMESTAMPS"]'),
    '["OFF","TIMESTAMPS"]': (400, ONE_OFF),
    '["TIMESTAMPS","OFF"]': (400, ONE_OFF),
    '["OFF","OFF"]': (400, ONE_OFF),
    '["OFF","other"]': (400, ONE_OFF),
    '["other"]': (200, '"trace_level":["OFF"]'),
    '["MIN"]': (200, '"trace_level":["OFF"]'),
    '["MAX"]': (200, '"trace_level":["OFF"]'),
    '["timestamps"]': (200, '"trace_level":["OFF"]'),
    '["other","TENSORS"]': (200, '"trace_level":["TENSORS"]'),
    "[]": (200, ""),
    "null": (200, ""),
    '"OFF"': (500, ARRAY),
    "1": (500, ARRAY),
    "true": (500, ARRAY),
    "{}": (500, ARRAY),
    "[1]": (500, STRING),
    "[null]": (500, STRING),
    '["TIMESTAMPS",1]': (500, STRING),
    '[["TIMESTAMPS"]]': (500, STRING),
}
#: What every number may look like, and what is kept of it.
NUMBERS = {
    '"0"': "0",
    '"1"': "1",
    '"-0"': "0",
    '"2147483647"': "2147483647",
    '"5x"': "5",
    '"1.5"': "1",
    '"1e3"': "1",
    '"0x10"': "0",
    '"007"': "7",
    '" 5"': "5",
    '"\\t5 "': "5",
    '"+5"': "5",
}
NO_STRINGS = dict.fromkeys(("1", "-1", "true", "[]", '["1"]', "{}"), (500, STRING))


def number_cases(path: str, field: str) -> list[Case]:
    """Write the cases of a field that is a number in a string."""
    wrap = {'"-1"': "4294967295", '"-2"': "4294967294", '"-2147483648"': "2147483648"}
    told = "[ -1, 2147483647 ]" if field == "trace_count" else "[ 0, 4294967295 ]"
    far = ("2147483648", "4294967295", "-2147483649", "99999999999999999999", "9" * 40)
    few = "Unable to parse 'trace_count'. Expecting value >= -1, got:"
    kept = NUMBERS | ({'"-1"': "-1"} if field == "trace_count" else wrap)
    return values(
        path,
        field,
        {
            **{text: (200, f'"{field}":"{value}"') for text, value in kept.items()},
            **(
                {f'"{number}"': (400, few + number) for number in ("-2", "-2147483648")}
                if field == "trace_count"
                else {}
            ),
            **{
                f'"{number}"': (
                    400,
                    f"Unable to parse '{field}', value is out of range {told}, got: {number}",
                )
                for number in far
            },
            '"x"': (400, f"Unable to parse '{field}', got: x"),
            '""': (400, f"Unable to parse '{field}', got: "),
            '" "': (400, f"Unable to parse '{field}', got: "),
            '"-"': (400, f"Unable to parse '{field}', got: -"),
            "null": (200, ""),
            **NO_STRINGS,
        },
    )


SEVERAL = {
    '{"trace_rate":"7","trace_rate":"8"}': (200, '"trace_rate":"7"'),
    '{"trace_rate":"7","trace_count":"x"}': (400, "'trace_count', got: x"),
    '{"trace_count":"x","trace_rate":"7"}': (400, "'trace_count', got: x"),
    '{"trace_rate":"x","trace_count":1}': (400, "'trace_rate', got: x"),
    '{"trace_count":1,"trace_rate":"x"}': (400, "'trace_rate', got: x"),
    '{"trace_level":["TIMESTAMPS"],"trace_rate":"x"}': (400, "'trace_rate', got: x"),
    '{"log_frequency":"x","trace_level":["OFF","TENSORS"]}': (400, ONE_OFF),
    '{"trace_rate":1,"trace_level":1}': (500, ARRAY),
    '{"log_frequency":1,"trace_count":"x"}': (400, "'trace_count', got: x"),
    '{"trace_rate":"7","trace_file":"f"}': (501, TRACE_FILE),
    '{"trace_level":"x","trace_file":"f"}': (501, TRACE_FILE),
    '{"trace_level":["TENSORS"],"trace_rate":"3","trace_count":"5","log_frequency":"2"}': (200, ""),
    '{"trace_level":["TENSORS"],"trace_rate":"0"}': (400, INVALID + "sample rate must be non-zero"),
    '{"trace_level":["TENSORS"],"trace_count":"0"}': (400, f'{INVALID}"'),
    '{"trace_level":["OFF"],"trace_rate":"0","trace_count":"0"}': (200, '"trace_count":"0"'),
}


def trace_cases(title: str, path: str) -> list[Case]:
    """Write the cases of the settings at one path."""
    return [
        *chapter(f"{title} settings", *table(path, DOCUMENTS), *methods(path)),
        *chapter(
            f"{title} file",
            *values(
                path,
                "trace_file",
                dict.fromkeys(('"x"', '""', "null", "1", "[]", "{}"), (501, TRACE_FILE)),
            ),
        ),
        *chapter(
            f"{title} mode",
            *values(
                path,
                "trace_mode",
                dict.fromkeys(('"opentelemetry"', "1", "null"), (200, '"trace_mode":"triton"')),
            ),
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
        case("an unknown model", get("/v2/models/nobody/trace/setting"), 400, UNKNOWN),
        case("an unknown model, set", post("/v2/models/nobody/trace/setting", "{}"), 400, UNKNOWN),
        case("an unknown model, ill", post("/v2/models/nobody/trace/setting", "{"), 400, UNKNOWN),
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
