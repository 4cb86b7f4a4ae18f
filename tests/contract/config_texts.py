"""Small texts of config.pbtxt that test how protobuf's text format is read."""

from __future__ import annotations


def batch_size(value: str) -> str:
    return f"max_batch_size: {value}"


def dims(value: str) -> str:
    return f'input {{ name: "X" data_type: TYPE_FP32 dims: {value} }}'


def string(value: str) -> str:
    return f"default_model_filename: {value}"


def enum(value: str) -> str:
    return f'input {{ name: "X" data_type: {value} dims: 1 }}'


def decoupled(value: str) -> str:
    return f"model_transaction_policy {{ decoupled: {value} }}"


def fractions(value: str) -> str:
    return (
        'sequence_batching { control_input { name: "C" control { '
        f"kind: CONTROL_SEQUENCE_START fp32_false_true: {value} }} }} }}"
    )


#: The texts by name. A line that sets the backend precedes each text.
TEXTS: dict[str, str] = {
    "nothing more": "",
    "comments": "# one\nmax_batch_size: 4 # two\n# three",
    "separators": "max_batch_size: 4; platform: 'p', name: 'n'",
    "two separators": "max_batch_size: 4;; platform: 'p'",
    "separator first": ", max_batch_size: 4",
    "colon before a message": "dynamic_batching: { }",
    "no colon before a value": "max_batch_size 4",
    "angle brackets": "dynamic_batching < preferred_batch_size: 4 >",
    "mixed brackets": "dynamic_batching { >",
    "open message": "dynamic_batching {",
    "brace too many": "dynamic_batching { } }",
    "a list of messages": "instance_group [ { count: 1 }, { count: 2 } ]",
    "a list of messages after a colon": "instance_group: [ { count: 1 } ]",
    "messages without a comma": "instance_group [ { count: 1 } { count: 2 } ]",
    "a list for a single message": "dynamic_batching [ { } ]",
    "a list for a single value": "max_batch_size: [ 4 ]",
    "a list without a colon": 'input { name: "X" dims [ 1 ] }',
    "field twice": "max_batch_size: 4 max_batch_size: 4",
    "backend twice": 'backend: "python"',
    "message twice": "dynamic_batching { } dynamic_batching { }",
    "two of a oneof": "dynamic_batching { } sequence_batching { }",
    "unknown field": "quantum_batching { }",
    "misspelled field": "max_batchsize: 4",
    "field in camel case": "maxBatchSize: 4",
    "field in capitals": "MAX_BATCH_SIZE: 4",
    "field by its number": "4: 4",
    "parameter twice": (
        'parameters { key: "a" value { string_value: "1" } } '
        'parameters { key: "a" value { string_value: "2" } }'
    ),
    "parameter without a key": 'parameters { value { string_value: "1" } }',
    "parameter without a value": 'parameters { key: "a" }',
    "parameter of another type": 'parameters { key: "a" value { int64_value: 1 } }',
    "map of numbers": (
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 "
        "priority_queue_policy { key: 1 value { max_queue_size: 3 } } }"
    ),
    **{f"dims {value}": dims(value) for value in ("[ ]", "[ 10 ]", "[ 1, 2 ]", "7")},
    **{f"dims {value}": dims(value) for value in ("[ 10, ]", "[ 1 2 ]", "[ , ]", "[ -1 ]")},
    "dims one by one": dims("1 dims: [ 2, 3 ] dims: 4"),
    **{f"integer {value}": batch_size(value) for value in ("0x10", "010", "-3", "2147483647")},
    **{f"integer {value}": batch_size(value) for value in ("08", "1.0", "1e1", "2147483648")},
    **{f"integer {value}": batch_size(value) for value in ("+4", "- 4", '"4"', "4x", "true")},
    **{f"string {value}": string(value) for value in ("'a' \"b\"", r'"\x2e"', r'"\056"', '"长"')},
    **{f"string {value}": string(value) for value in (r'"\n\t\\\"\'"', r'"\q"', "'open", "word")},
    **{f"string {value}": string(value) for value in (r'"\u00e9"', r'"\xff"', '"# no comment"')},
    "string of two lines": string('"a\nb"'),
    "string with a tab": string('"a\tb"'),
    **{f"enum {value}": enum(value) for value in ("TYPE_STRING", "11", "99", '"TYPE_FP32"')},
    **{f"enum {value}": enum(value) for value in ("type_fp32", "TYPE_FP128")},
    **{f"truth {value}": decoupled(value) for value in ("true", "True", "t", "1", "0", "false")},
    **{f"truth {value}": decoupled(value) for value in ("2", "TRUE", '"true"', "yes")},
    **{f"fractions {value}": fractions(value) for value in ("[ .5, 1.5e3 ]", "[ 1f, 2 ]")},
    **{f"fractions {value}": fractions(value) for value in ("[ inf, -inf ]", "[ nan, 0x1 ]")},
    "a null character": "max_batch_size: 4 \0",
    "a byte order mark inside": "\ufeffmax_batch_size: 4",
}
