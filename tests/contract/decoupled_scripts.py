"""Scripts of models that use response senders, and the responses that their clients receive.

A script is the code that the probe `scripted.py` executes for one request, with the messages of the
real server's gRPC stream: the texts of responses and of errors. Two kinds of scripts are not here,
because they crash the real server: an ordinary model that both sends and returns a response, and an
ordinary model that sends only the final flag.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from contract.probes import MODELS

IO = """
    input { name: "script" data_type: TYPE_STRING dims: [1] }
    output { name: "said" data_type: TYPE_STRING dims: [-1] }
    output { name: "also" data_type: TYPE_STRING dims: [-1] }
"""
DECOUPLED = "model_transaction_policy { decoupled: true }"
ITERATIVE = "max_batch_size: 4 sequence_batching { iterative_sequence: true }"
# A batch runs when two requests have arrived.
IN_PAIRS = """
    max_batch_size: 4
    dynamic_batching { preferred_batch_size: [2] max_queue_delay_microseconds: 60000000 }
"""
RESHAPED = IO.replace("dims: [-1] }", "dims: [-1] reshape { shape: [-1, 1] } }")

SCRIPTED = {
    "decoupled": IO + DECOUPLED,
    "ordinary": IO,
    "paired": IO + DECOUPLED + IN_PAIRS,
    "paired_ordinary": IO + IN_PAIRS,
    "iterative": IO + ITERATIVE,
    "iterative_decoupled": IO + DECOUPLED + ITERATIVE,
    "reshaped_decoupled": RESHAPED + DECOUPLED,
    "asynchronous": IO + DECOUPLED,
}

WRAPPED = (
    'platform: "ensemble"'
    + IO
    + """
    ensemble_scheduling { step {
        model_name: "ordinary" model_version: -1
        input_map { key: "script" value: "script" }
        output_map { key: "said" value: "said" } output_map { key: "also" value: "also" }
    } }
"""
)

FINAL, GOES_ON = True, False
Told = tuple[str, bool]


@dataclass(frozen=True)
class Script:
    """A model's actions, and the messages: their texts, and whether they are marked as final.

    `fails`: the request counts as failed.
    """

    name: str
    model: str
    source: str
    told: tuple[Told, ...]
    fails: bool = False

    def __str__(self) -> str:
        return f"{self.model}: {self.name}"


def decoupled(name: str, source: str, *told: Told, fails: bool = False) -> Script:
    """Write a row about a decoupled model."""
    return Script(name, "decoupled", source, told, fails)


def ordinary(name: str, source: str, *told: Told, fails: bool = False) -> Script:
    """Write a row about a model that is not decoupled."""
    return Script(name, "ordinary", source, told, fails)


def refusals(*calls: str) -> str:
    """Return a script that tries these calls, and answers with their exceptions."""
    lines = ["texts = []"]
    for call in calls:
        lines += [
            f"try: {call}; texts.append('sent')",
            "except Exception as e: texts.append(str(e))",
        ]
    return "\n".join([*lines, ""])


SAY = "sender.send(say('{}'))\n"
A, B = SAY.format("a"), SAY.format("b")
END = "sender.send(flags=FINAL)\n"
LAST = "sender.send(say('last'), FINAL)\n"
BAD = "sender.send(fail('bad', pb_utils.TritonError.NOT_FOUND))\n"
RAISE = "raise ValueError('broken')\n"
AGAIN = "request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)\n"
LATER = "def f():\n  sender.send(say('b'))\n  sender.send(flags=FINAL)\nlater(f)\n"
TELL = "sender.send(say(*texts), FINAL)\n"
BROKEN = "ValueError: broken"
RETURNED = "is using the decoupled mode and the execute function must return None."
NEITHER = "Inference Response object must be provided when the response flags is set to zero."
UNSUPPORTED = "Unable to send response. Unsupported flag provided."
CLOSED = "Unable to send response. Response sender has been closed."
SECOND = "Unable to send response. Non-decoupled model cannot send more than one response."
HALF = "sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('said', np.ones(1, 'f2'))]))\n"

SCRIPTS = [
    decoupled("one and the flag on it", LAST, ("last", FINAL)),
    decoupled("one and the flag by itself", A + END, ("a", GOES_ON)),
    decoupled("none", END),
    decoupled("three", A + B + LAST, ("a", GOES_ON), ("b", GOES_ON), ("last", FINAL)),
    decoupled("an error", BAD + END, ("bad", GOES_ON)),
    decoupled("an error is no end", BAD + A + END, ("bad", GOES_ON), ("a", GOES_ON)),
    decoupled(
        "an error in between", A + BAD + LAST, ("a", GOES_ON), ("bad", GOES_ON), ("last", FINAL)
    ),
    decoupled("an error with the flag", "sender.send(fail('bad'), FINAL)", ("bad", FINAL)),
    decoupled("from another thread", A + LATER, ("a", GOES_ON), ("b", GOES_ON)),
    decoupled("a response of several", "sender.send(say('x', 'y'), FINAL)", ("x y", FINAL)),
    decoupled("half floats, which JSON has not", HALF + LAST, ("00 3c", GOES_ON), ("last", FINAL)),
    decoupled(
        "an output that nobody declared", "sender.send(say('x', name='z'), FINAL)", ("", FINAL)
    ),
    decoupled("by keywords", "sender.send(response=say('k'), flags=FINAL)", ("k", FINAL)),
    decoupled(
        "the sender is one",
        "sender.send(say(str(sender is request.get_response_sender())), FINAL)",
        ("True", FINAL),
    ),
    decoupled(
        "what cannot be sent",
        refusals("sender.send()", "sender.send(None, 2)", "sender.send(say('x'), 3)") + TELL,
        (f"{NEITHER} {UNSUPPORTED} {UNSUPPORTED}", FINAL),
    ),
    decoupled("raises", RAISE, (BROKEN, FINAL), fails=True),
    decoupled("raises between", A + RAISE, ("a", GOES_ON), (BROKEN, FINAL), fails=True),
    decoupled("raises at the end", LAST + RAISE, ("last", FINAL), fails=True),
    decoupled("returns a list", A + "returned = []", ("a", GOES_ON), (RETURNED, FINAL), fails=True),
    decoupled("returns at the end", LAST + "returned = 3", ("last", FINAL), fails=True),
    ordinary("sends and returns none", LAST, ("last", FINAL)),
    ordinary("sends the flag by itself", A + END, ("a", GOES_ON)),
    ordinary("sends an error", "sender.send(fail('bad'), FINAL)", ("bad", FINAL)),
    ordinary("does not use its sender", "answer = say('returned')", ("returned", FINAL)),
    ordinary(
        "sends twice",
        LAST
        + refusals("sender.send(say('x'))", "sender.send(say('x'), FINAL)", "sender.send(flags=1)")
        + "kept['texts'] = texts",
        ("last", FINAL),
    ),
    ordinary(
        "was told what of it",
        "answer = say(*kept['texts'])",
        (f"{SECOND} {SECOND} {CLOSED}", FINAL),
    ),
    ordinary(
        "what cannot be sent",
        refusals("sender.send()", "sender.send(None, 2)", "sender.send(say('x'), 3)") + TELL,
        (f"{NEITHER} {UNSUPPORTED} {UNSUPPORTED}", FINAL),
    ),
    # The stream has ended before the error, so that the error is not sent.
    ordinary("sends, and raises", A + RAISE, ("a", GOES_ON), fails=True),
    ordinary("sends a second response", A + B, ("a", GOES_ON), fails=True),
    ordinary("sends a second error", BAD + BAD, ("bad", GOES_ON), fails=True),
    Script(
        "is sent in the shape of its config",
        "reshaped_decoupled",
        "tensor = pb_utils.Tensor('said', np.array([[b'x'], [b'y']], 'O'))\n"
        "sender.send(pb_utils.InferenceResponse([tensor]), FINAL)",
        (("x y", FINAL),),
    ),
]

#: Differences: the reference server sends the only response of an ordinary model when the model has
#: sent the final flag, so the response can be marked as the last.
TOLD_OTHERWISE = {"ordinary: sends the flag by itself": (("a", FINAL),)}

COUNT = "kept['n'] = kept.get('n', 0) + 1\n"
#: Requests that are executed three times.
ITERATIONS = [
    Script(
        "three times",
        "iterative",
        f"{COUNT}if kept['n'] < 3:\n  {AGAIN}"
        "else:\n  answer = say(str(kept.pop('n')), str(request.flags()))",
        (("3 0", FINAL),),
    ),
    Script(
        "a response each time",
        "iterative_decoupled",
        f"{COUNT}sender.send(say(str(kept['n']), str(request.flags())))\n"
        f"if kept['n'] < 3:\n  {AGAIN}else:\n  kept.clear()\n  {END}",
        (("1 1", GOES_ON), ("2 0", GOES_ON), ("3 0", GOES_ON)),
    ),
]

#: Two requests of one batch: the scripts, and each client's responses.
PAIRS = {
    "both are answered": ("paired", (A + END, LAST), ((("a", GOES_ON),), (("last", FINAL),))),
    "one raises": (
        "paired",
        (LAST, A + RAISE),
        ((("last", FINAL),), (("a", GOES_ON), (BROKEN, FINAL))),
    ),
    "the other was open": (
        "paired",
        (A, RAISE),
        ((("a", GOES_ON), (BROKEN, FINAL)), ((BROKEN, FINAL),)),
    ),
    "one sends, one returns": (
        "paired_ordinary",
        (LAST, "answer = say('returned')"),
        ((("last", FINAL),), (("returned", FINAL),)),
    ),
}


def write_scripted(repository: Path) -> None:
    """Write a repository of models that execute the scripts in their requests."""
    source = (MODELS / "scripted.py").read_text(encoding="utf-8")
    for name, config in SCRIPTED.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config, encoding="utf-8")
        if name == "asynchronous":
            shutil.copy(MODELS / "scripted_coroutine.py", version / "model.py")
        else:
            (version / "model.py").write_text(source, encoding="utf-8")
    (repository / "wrapped" / "1").mkdir(parents=True)
    (repository / "wrapped" / "config.pbtxt").write_text(WRAPPED, encoding="utf-8")
