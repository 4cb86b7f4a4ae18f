"""Scripts for sequence batchers, and the batches that result from them.

A step of a script is a line:

    a 1 start        request `a` of sequence 1, with the START flag; wait for its answer
    +a 1 x=2         send it without waiting; consecutive requests arrive in this order
    !a 1             send it, and wait until the model has it
    hold, release    make the model wait; let it continue, and wait for all answers
    sleep 2.5        wait for this many seconds

`-` means no sequence. A sequence id that is not a number is a string.
"""

from __future__ import annotations

from dataclasses import dataclass

CONTROLS = """
    control_input { name: "START" control {
      kind: CONTROL_SEQUENCE_START int32_false_true: [-3, 3] } }
    control_input { name: "END" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [0, 0.5] } }
    control_input { name: "READY" control {
      kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] } }
    control_input { name: "CORRID" control {
      kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""
LONG = "max_sequence_idle_microseconds: 600000000"


def config(batching: str, *, rows: int = 4, idle: str = LONG, more: str = "") -> str:
    """Return the config.pbtxt of a model with a sequence batcher."""
    return f"""
        max_batch_size: {rows}
        input {{ name: "X" data_type: TYPE_FP32 dims: [-1] }}
        output {{ name: "Y" data_type: TYPE_FP32 dims: [-1] }}
        sequence_batching {{ {idle} {batching} }}
        {more}
    """


def correlation(datatype: str) -> str:
    """Return the direct strategy with a correlation id of this type."""
    return config(f"direct {{ }} {CONTROLS.replace('UINT64', datatype)}", rows=2)


TWO = "instance_group { count: 2 kind: KIND_CPU }"
STATE = """
    state { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: [2]
            initial_state { name: "first" data_type: TYPE_INT32 dims: [2] data_file: "first" } }
    state { input_name: "TI" output_name: "TO" data_type: TYPE_FP32 dims: [-1, 2]
            initial_state { name: "zeros" data_type: TYPE_FP32 dims: [1, 2] zero_data: true } }
"""

#: The models, to which only the scripts send requests.
MODELS = {
    "direct": config(f"direct {{ }} {CONTROLS}"),
    "alone": config(CONTROLS, rows=0),
    "two": config("direct { }", rows=0, more=TWO),
    "utilized": config(
        "direct { max_queue_delay_microseconds: 60000000 minimum_slot_utilization: 0.5 }"
    ),
    "delayed": config(
        "direct { max_queue_delay_microseconds: 300000 minimum_slot_utilization: 1 }"
    ),
    "oldest": config(f"oldest {{ max_candidate_sequences: 3 }} {CONTROLS}"),
    "preferred": config(
        "oldest { max_candidate_sequences: 4 preferred_batch_size: 2 "
        "max_queue_delay_microseconds: 60000000 }"
    ),
    "idle": config("direct { }", rows=1, idle="max_sequence_idle_microseconds: 1000000"),
    "narrow": config("direct { }", rows=1),
    "iterative": config(f"iterative_sequence: true {CONTROLS}"),
    "iterative_oldest": config(
        f"iterative_sequence: true oldest {{ max_candidate_sequences: 2 }} {CONTROLS}"
    ),
    "int64": correlation("INT64"),
    "uint32": correlation("UINT32"),
    "int32": correlation("INT32"),
    "string": correlation("STRING"),
    "state": config(f"{STATE} {CONTROLS}"),
}


@dataclass(frozen=True)
class Script:
    """Steps, the ids in the real server's batches, and its errors.

    `parallel`: the batches have no order, because instances start in any order.
    """

    name: str
    model: str
    steps: str
    batches: str
    errors: tuple[str, ...] = ()
    parallel: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def expected(self) -> list[list[str]]:
        """Return the batches as lists of ids, where `_` is a null request."""
        rows = [line.split() for line in self.batches.split("/")]
        return [["" if name == "_" else name for name in row] for row in rows if row]


def must_start(key: int | str, model: str) -> str:
    """Return the error for a request whose sequence does not exist."""
    return (
        f"inference request for sequence {key} to model '{model}' must specify the START flag on "
        "the first request of the sequence"
    )


def no_id(model: str) -> str:
    """Return the error for a request without a sequence."""
    return (
        f"inference request to model '{model}' must specify a non-zero or non-empty correlation ID"
    )


EXPIRED = "timeout of the corresponding sequence has been expired"
FAILED = "Failed to process the request(s) for model 'direct_0', message: ValueError"
UNREADABLE = "unexpected number of string elements 2 for inference input 'CORRID', expecting 1"

SCRIPTS = [
    Script("a sequence", "direct", "a 1 start; b 1; c 1 end", "a / b / c"),
    Script("start and end at once", "direct", "a 1 start end; b 2 start end", "a / b"),
    Script(
        "refused at once",
        "direct",
        "a - start; b 0 start; c 9; d nine; e 9 end; f 9 start rows=2",
        "",
        (
            no_id("direct"),
            no_id("direct"),
            must_start(9, "direct"),
            must_start("nine", "direct"),
            must_start(9, "direct"),
            "inference request to model 'direct' must specify batch-size 1 due to requirements of "
            "sequence batcher",
        ),
    ),
    Script(
        "nothing after the end",
        "direct",
        "a 1 start; b 1 end; c 1",
        "a / b",
        (must_start(1, "direct"),),
    ),
    Script(
        "holes are filled",
        "direct",
        "a 1 start; b 2 start; c 3 start; c2 3 end; b2 2 end; a2 1 end",
        "a / _ b / _ _ c / _ _ c2 / _ b2 / a2",
    ),
    Script(
        "one request of each slot in a batch",
        "direct",
        "hold; !x 9 start; +a 1 start; +a2 1 end; +b 2 start end; +x2 9 end; release",
        "x / x2 a b / _ a2",
    ),
    Script(
        "the fifth waits for a slot",
        "direct",
        "hold; !a 1 start; +b 2 start; +c 3 start; +d 4 start; +e 5 start; +f 6 start; +b2 2 end;"
        "+f2 6 end; +e2 5 end; +a2 1 end; +c2 3 end; +d2 4 end; release",
        "a / a2 b c d / e b2 c2 d2 / e2 f / _ f2",
    ),
    Script(
        "an id begins again before it has ended",
        "direct",
        "hold; !x 9 start; +a 1 start; +b 1 end; +c 1 start; +d 1 end; +x2 9 end; release",
        "x / x2 a c / _ b d",
    ),
    Script(
        "a start within a sequence",
        "direct",
        "hold; !a 1 start; +b 1; +c 1 start; +d 1 end; release",
        "a / b / c / d",
    ),
    Script(
        "other shapes wait",
        "direct",
        "hold; !x 9 start; +a 1 start end cols=2; +b 2 start end cols=3; +c 3 start end cols=2;"
        "+x2 9 end cols=2; release",
        "x / x2 a _ c / _ _ b",
    ),
    Script(
        "a failed batch",
        "direct",
        "a 1 start; b 2 start; b2 2 x=666; b3 2 end; a2 1 end",
        "a / _ b / _ b2 / _ b3 / a2",
        (FAILED,),
    ),
    Script("without a batch dimension", "alone", "a 1 start; b 1; c 1 end", "a / b / c"),
    Script(
        "two instances",
        "two",
        "hold; !a 1 start; !b 2 start; +c 3 start end; +b2 2 end; release; a2 1 end",
        "a / b / b2 / c / a2",
        parallel=True,
    ),
    Script(
        "enough for the utilization",
        "utilized",
        "+a 1 start; b 2 start; +a2 1 end; b2 2 end; +c 3 start; d 4 start; +d2 4 end; c2 3 end",
        "a b / a2 b2 / c d / c2 d2",
    ),
    Script("too few wait for the delay", "delayed", "a 1 start; a2 1 end", "a / a2"),
    Script(
        "oldest",
        "oldest",
        "hold; !x 9 start; +a 1 start; +b 2 start; release; a2 1 end; b2 2 end; x2 9 end",
        "x / a b / a2 / b2 / x2",
    ),
    Script(
        "a slot that is free again has one request executed at a time",
        "oldest",
        "hold; !x 9 start; +a 1 start end; +b 2 start end; release; x2 9 end",
        "x / a / b / x2",
    ),
    Script("oldest one after the other", "oldest", "a 1 start; b 1; c 1 end", "a / b / c"),
    Script(
        "oldest in pairs",
        "preferred",
        "+a 1 start; b 2 start; +a2 1 end; b2 2 end",
        "a b / a2 b2",
    ),
    Script(
        "idle sequences end", "idle", "a 1 start; sleep 2.5; b 1", "a", (must_start(1, "idle"),)
    ),
    Script("idle sequences make room", "idle", "a 1 start; b 2 start end", "a / b"),
    Script(
        "a timeout in the backlog",
        "narrow",
        "a 1 start; +b 2 start; b2 2 timeout=50000; b3 2; a2 1 timeout=1 end",
        "a / a2",
        (EXPIRED, EXPIRED, must_start(2, "narrow")),
    ),
    Script(
        "iterations",
        "iterative",
        "a 5 start x=2; b 5; c 6 start end; d six start x=1",
        "a / a / a / c / d / d",
        (must_start(5, "iterative"),),
    ),
    Script(
        "iterations in slots",
        "iterative",
        "hold; !p 1 start x=1; +q 2 start x=2; +r 3 start x=1; +z 4 start; release",
        "p / p q r z / _ q r / _ q",
    ),
    Script(
        "iterations of the oldest", "iterative_oldest", "a 5 start x=2; b 6 start", "a / a / a / b"
    ),
    *(
        Script(
            f"ids as {model}",
            model,
            "a 1099511627781 start end; b 9223372036854775815 start end; c str1 start end;"
            "d hello,world start end; e é start end; f 1x start end; g h1 start; h h2 start end;"
            "i h1 end",
            "a / b / c / d / e / f / g / _ h / i",
        )
        for model in ("int64", "uint32", "int32")
    ),
    Script("an id of 128 letters", "narrow", f"a {'w' * 128} start end", "a"),
    Script(
        "an id of 129 letters",
        "narrow",
        f"a {'w' * 129} start end; b {'é' * 65} start end",
        "",
        ("string correlation ID cannot be longer than 128 characters",) * 2,
    ),
    Script("ids as strings", "string", "a 12 start end; b str1 start end", "", (UNREADABLE,) * 2),
    Script("a state begins", "state", "a 1 start end; b 2 start end", "a / b"),
    Script("a state goes on", "state", "a 1 start; b 1; c 1 end; d 1 start end", "a / b / c / d"),
    Script(
        "a state that is asked for",
        "state",
        "a 1 start end outputs=Y; b 1 start end outputs=SO",
        "a",
        ("unexpected inference output 'SO' for model 'state'",),
    ),
]

#: Differences of the reference server by script: the reason, its batches and its errors.
DIFFERENCES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "ids as strings": (
        "a control of strings holds the id; the real server pads it, and cannot read it then",
        "a / b",
        (),
    ),
}
#: States by script: on the reference server, each request has the state after the previous one.
STATES_OTHERWISE = {
    "a state goes on": "the real server feeds the initial state to every request",
}

#: Configurations that neither server loads, with the text in both logs. Wrong initial states are
#: excluded, because the real server may crash on them while it loads other models.
BROKEN = {
    "no_values": (
        config('control_input { name: "S" control { kind: CONTROL_SEQUENCE_END } }'),
        "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or "
        "'bool_false_true' for CONTROL_SEQUENCE_END for no_values",
    ),
    "no_type": (
        config('control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID } }'),
        "unexpected data type for control CONTROL_SEQUENCE_CORRID for no_type. Allowed data types "
        "are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
    ),
    "too_large": (
        config("oldest { preferred_batch_size: 5 }"),
        "sequence batching preferred batch size must be <= max batch size for too_large",
    ),
    "too_much": (
        config("direct { minimum_slot_utilization: 2 }"),
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for too_much",
    ),
}
