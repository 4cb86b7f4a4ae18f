"""Random events of queues: when each request is answered, and in which batch.

    PYTHONPATH=.:tests python -m contract.queue_events           compare the real server's answers
                                                                 with the recording
    PYTHONPATH=.:tests python -m contract.queue_events record [PATTERN]    record them again
    PYTHONPATH=.:tests python -m contract.queue_events reference compare the reference server's

A scenario is a few requests to one model, with arrival times, rows, priorities, time limits,
durations and cancellations, all drawn from a seed. Scenarios are selected whose outcome does not
depend on a few hundredths of a second. `tests/recorded/test_queues.py` plays the recorded ones on
the schedulers' queues with a simulated clock, which takes no time.

While requests wait, an instance of the model `shrinks` is removed, and an instance of `grows` is
added: its process starts before the requests, and waits for its time. A client of `leaves`
disconnects, which cancels several requests at once. HTTP clients do not disconnect, because the
real server executes their requests. `scheduler_scripts.share` draws events of the rate limiter,
whose choice depends on their order and on all earlier executions, not on times.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from contract.recordings import FOLDER
from google.protobuf import json_format, text_format
from support.servers import COMPLETE, Flag, Server, start_reference_server, start_tritonserver
from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.config.complete import complete
from reference_server.config.schema import ModelConfig
from reference_server.repository.schedulers import work_queue
from tools.timelines import Life, play

RECORDING = FOLDER / "queues.jsonl"
_MODEL = Path(__file__).with_name("probe_models") / "lasting.py"
_PER_MODEL = 12
#: The largest difference between two times that count as equal.
TOLERANCE_MS = 100
_JITTER_MS = 45
_TRIALS = 12

_LIMITS = "default_timeout_microseconds: 2950000 allow_timeout_override: true"
_DELAYS = f"default_queue_policy {{ timeout_action: DELAY {_LIMITS} }}"
_REJECTS = f"default_queue_policy {{ {_LIMITS} }}"
_WAITS = "preferred_batch_size: [4, 8, 32] max_queue_delay_microseconds: 1050000"
_LEVELS = "priority_levels: 3 default_priority_level: 2"
_MIXED = f"""default_queue_policy {{ }}
    priority_queue_policy {{ key: 1 value {{ timeout_action: DELAY {_LIMITS} }} }}
    priority_queue_policy {{ key: 3 value {{ {_LIMITS} }} }}"""
_TWO = "instance_group { count: 2 }"
#: The name of the event that removes or adds an instance.
_CHANGE = "0"

#: The largest batch, the dynamic batcher, and further configuration of each model, by name.
MODELS = {
    "plain": (32, _WAITS, ""),
    "delays": (32, f"{_WAITS} {_DELAYS}", ""),
    "rejects": (32, f"{_WAITS} {_REJECTS}", ""),
    "levels": (32, f"{_WAITS} {_LEVELS}", ""),
    "levels_delay": (32, f"{_WAITS} {_LEVELS} {_DELAYS}", ""),
    "levels_mixed": (32, f"{_WAITS} {_LEVELS} {_MIXED}", ""),
    "two_delay": (32, f"{_WAITS} {_DELAYS}", _TWO),
    "small": (
        8,
        f"preferred_batch_size: [3, 6] max_queue_delay_microseconds: 650000 {_DELAYS}",
        "",
    ),
    "ordered": (2, "preserve_ordering: true", _TWO),
    "shrinks": (1, "", _TWO),
    "grows": (1, "", "instance_group { count: 1 }"),
    "leaves": (32, f"{_WAITS} {_DELAYS}", ""),
}
#: Models of which a request removes or adds an instance, and one whose client disconnects.
SHRINKS, GROWS, LEAVES = "shrinks", "grows", "leaves"
#: The time before which an added instance is not open, because its process may start slowly.
_OPENS_MS = 2000
#: The time until Triton uses an instance whose `initialize` has returned.
_OPENING_MS = 75
#: Models that also exist with an input of any size: Triton then checks its queue at each arrival.
FREE = ("delays", "rejects", "levels_mixed")
#: Models with long executions.
BUSY = ("plain", "ordered", "shrinks", "grows")


def configurations() -> dict[str, str]:
    """Return the config.pbtxt of each model."""
    texts = {name: _configuration(*settings, dim=1) for name, settings in MODELS.items()}
    texts |= {f"{name}_free": _configuration(*MODELS[name], dim=-1) for name in FREE}
    return texts


def _configuration(rows: int, batching: str, more: str, dim: int) -> str:
    return f"""backend: "python" max_batch_size: {rows}
        input {{ name: "X" data_type: TYPE_FP32 dims: [{dim}] }}
        output {{ name: "Y" data_type: TYPE_INT32 dims: [-1] }}
        dynamic_batching {{ {batching} }} {more}"""


#: The answer to a request: its time in milliseconds, and its batch or the text of its error.
Outcome = dict[str, tuple[int, str]]


def scenario(model: str, number: int) -> list[Life]:
    """Draw the requests of a scenario."""
    largest = MODELS[model.removesuffix("_free")][0]
    draw = random.Random(f"{model} {number}")
    while True:
        lives = _drawn(draw, model, min(5, largest))
        expected = simulated(model, lives)
        jittered = (simulated(model, [_late(draw, life) for life in lives]) for _ in range(_TRIALS))
        if all(not differences(expected, outcome) for outcome in jittered):
            return lives


def _drawn(draw: random.Random, model: str, most_rows: int) -> list[Life]:
    lives: list[Life] = []
    text = configurations()[model]
    limited, levels = "timeout_override" in text, "levels" in text
    crowded = model in (SHRINKS, GROWS)
    first = _OPENS_MS - 300 if model == GROWS else 0
    span, fewest = (700, 4) if crowded else (draw.choice((700, 1800)), 3)
    moments = sorted(draw.sample(range(first, first + span, 100), draw.randint(fewest, 6)))
    for number, arrives in enumerate(moments, 1):
        fields = {"batch_size": draw.randint(1, most_rows)}
        if limited and draw.random() < 0.6:
            fields["timeout_us"] = draw.randrange(150, 1500, 100) * 1000
        if levels:
            fields["priority"] = draw.randint(0, 3)
        cancels = arrives + draw.randrange(150, 1000, 100) if draw.random() < 0.15 else None
        if crowded:  # the real server executes cancelled requests, also in the next scenario
            cancels = None
        # While an instance is busy, Triton waits up to 0.5 s between two checks of its queue.
        durations = (330, 730) if crowded else (30, 330, 730)
        lasts = draw.choice(durations) if model in BUSY else 30
        lives.append(Life(str(number), arrives, lasts, fields, cancels))
    if model == LEAVES:
        leaving = draw.sample(lives, draw.randint(2, len(lives)))
        cancels = max(life.arrives for life in leaving) + draw.randrange(50, 650, 100)
        lives = [replace(life, cancels=cancels if life in leaving else None) for life in lives]
    if crowded:
        lives.append(Life(_CHANGE, first + draw.randrange(50, 900, 100)))
    return lives


def _late(draw: random.Random, life: Life) -> Life:
    def late(moment: float) -> float:
        return moment + draw.uniform(0, _JITTER_MS)

    cancels = None if life.cancels is None else late(life.cancels)
    return replace(life, arrives=late(life.arrives), lasts=late(life.lasts), cancels=cancels)


def simulated(model: str, lives: Sequence[Life]) -> Outcome:
    """Play the requests on the reference server's queue with a simulated clock."""
    changes = [life.arrives for life in lives if life.name == _CHANGE]
    lives = [replace(life, fields={**life.fields}) for life in lives if life.name != _CHANGE]
    proto = text_format.Parse(configurations()[model], ConfigProto())
    complete(proto, Path(model))
    config = ModelConfig.from_proto(proto)
    shrinks, grows = ((), changes) if model == GROWS else (changes, ())
    play(work_queue(config, Path(model)), lives, len(config.instances), shrinks, grows)
    batches: dict[int, list[str]] = {}
    for life in lives:
        batches.setdefault(life.batch, []).append(life.name)
    outcome = {}
    for life in lives:
        if life.answered is None:
            continue
        said = " ".join(batches[life.batch]) if life.error is None else life.error
        outcome[life.name] = round(life.answered), said
    return _without_cancelled(lives, outcome)


def _without_cancelled(lives: Sequence[Life], outcome: Outcome) -> Outcome:
    """Remove requests that were cancelled before their answer, which their clients cannot see.

    They are also removed from the batches, as Triton executes those in a pending batch.
    """
    cancels = {life.name: life.cancels for life in lives if life.cancels is not None}
    gone = {name for name in cancels if name not in outcome or not outcome[name][0] < cancels[name]}
    kept = {name: answer for name, answer in sorted(outcome.items()) if name not in gone}
    return {
        name: (moment, said if name not in said.split() else _without(said, gone))
        for name, (moment, said) in kept.items()
    }


def _without(batch: str, names: Container[str]) -> str:
    return " ".join(name for name in batch.split() if name not in names)


def differences(expected: Outcome, found: Outcome) -> list[str]:
    """Return the requests whose answers differ, each with both answers."""
    lines = []
    for name in sorted(expected.keys() | found.keys()):
        then, now = expected.get(name), found.get(name)
        if then is None or now is None or then[1] != now[1] or _apart(then, now):
            lines.append(f"{name}: {then}, {now}")
    return lines


def _apart(then: tuple[int, str], now: tuple[int, str]) -> bool:
    return abs(then[0] - now[0]) > TOLERANCE_MS


def played(server: Server, model: str, lives: Sequence[Life]) -> Outcome:
    """Send the requests to a server at their times."""
    answers: dict[str, tuple[int, str]] = {}
    answered = threading.Semaphore(0)
    events = [
        (0 if (model, life.name) == (GROWS, _CHANGE) else life.arrives, life, False)
        for life in lives
    ]
    events += [(life.cancels, life, True) for life in lives if life.cancels is not None]
    calls: dict[str, triton.CallContext] = {}
    if model in (SHRINKS, GROWS):
        _set_groups(server, model)
    with (
        triton.InferenceServerClient(server.grpc) as client,
        triton.InferenceServerClient(server.grpc) as leaving,
    ):
        for each in (client, leaving):
            each.is_server_live()  # connects
        start = time.monotonic()

        def noted(name: str):
            def note(result: triton.InferResult | None, error: Exception | None) -> None:
                said = error.message() if isinstance(error, triton.InferenceServerException) else ""
                if result is not None:
                    said = " ".join(map(str, sorted(result.as_numpy("Y").ravel())))
                answers[name] = round((time.monotonic() - start) * 1000), said
                answered.release()

            return note

        for moment, life, cancels in sorted(events, key=lambda event: event[0]):
            time.sleep(max(0.0, start + moment / 1000 - time.monotonic()))
            late_ms = (time.monotonic() - start) * 1000 - moment
            if late_ms > _JITTER_MS:
                print(f"{model}: {late_ms:.0f} ms late", file=sys.stderr)
            if cancels and model == LEAVES:
                leaving.close()
                continue
            if cancels:
                calls[life.name].cancel()
                continue
            if life.name == _CHANGE:
                opens = time.time() + (start - time.monotonic()) + life.arrives / 1000
                change = [{"count": 1}]
                if model == GROWS:
                    change += [{"count": 1, "name": f"at_{opens * 1000 - _OPENING_MS:.0f}"}]
                threading.Thread(target=_set_groups, args=(server, model, change)).start()
                continue
            rows = life.fields.get("batch_size", 8)
            tensor = triton.InferInput("X", [rows, 1], "FP32")
            tensor.set_data_from_numpy(np.full((rows, 1), life.lasts, np.float32))
            settings = {"priority": life.fields.get("priority", 0)}
            if "timeout_us" in life.fields:
                settings["timeout"] = life.fields["timeout_us"]
            sender = leaving if model == LEAVES and life.cancels is not None else client
            calls[life.name] = sender.async_infer(
                model, [tensor], noted(life.name), request_id=life.name, **settings
            )
        for _ in calls:
            answered.acquire()
    return _without_cancelled(lives, answers)


def _set_groups(server: Server, model: str, groups: Sequence[Mapping[str, Any]] = ()) -> None:
    """Change a model's instance groups, by default to those of its config.pbtxt."""
    message = text_format.Parse(configurations()[model], ConfigProto())
    if groups:
        del message.instance_group[:]
        for group in groups:
            message.instance_group.add(**group)
    with triton.InferenceServerClient(server.grpc) as client:
        client.load_model(model, config=json_format.MessageToJson(message))


def write(repository: Path) -> None:
    for name, text in configurations().items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(_MODEL.read_text())
        (repository / name / "config.pbtxt").write_text(text)


#: Scenarios and outcomes by model and number.
Scenarios = dict[tuple[str, int], list[Life]]
Outcomes = dict[tuple[str, int], Outcome]


def recorded() -> tuple[Scenarios, Outcomes]:
    """Return the recorded scenarios and the real server's answers, by model and number."""
    scenarios, outcomes = {}, {}
    for line in map(json.loads, RECORDING.read_text().splitlines()):
        key = line["model"], line["number"]
        scenarios[key] = [Life(*requests) for requests in line["requests"]]
        outcomes[key] = {name: (moment, said) for name, (moment, said) in line["answers"].items()}
    return scenarios, outcomes


def _record(scenarios: Scenarios, outcomes: Outcomes) -> None:
    lines = []
    for (model, number), outcome in sorted(outcomes.items()):
        requests = [
            (life.name, life.arrives, life.lasts, life.fields, life.cancels)
            for life in scenarios[model, number]
        ]
        line = {"model": model, "number": number, "requests": requests, "answers": outcome}
        lines.append(json.dumps(line))
    RECORDING.write_text("\n".join([*lines, ""]))


_FLAGS: dict[str, Flag] = COMPLETE | {"model_control_mode": "explicit", "load_model": "*"}


def _played(start: Callable[..., Any], scenarios: Scenarios) -> Outcomes:
    """Play all scenarios on a new server, those with the same number at once."""
    outcomes: Outcomes = {}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(32) as threads:
        repository = Path(folder) / "repository"
        write(repository)
        with start(repository, model_load_thread_count=8, **_FLAGS) as server:
            list(threads.map(lambda model: played(server, model, [Life("1", 0, 1)]), MODELS))
            for number in range(_PER_MODEL):
                running = {
                    key: threads.submit(played, server, key[0], lives)
                    for key, lives in scenarios.items()
                    if key[1] == number
                }
                outcomes |= {key: future.result() for key, future in running.items()}
    return outcomes


def _report(scenarios: Scenarios, expected: Outcomes, outcomes: Outcomes) -> int:
    count = 0
    for key, outcome in sorted(outcomes.items()):
        if found := differences(expected[key], outcome):
            count += 1
            print(*key)
            for life in scenarios[key]:
                fields = dict(life.fields)
                print(f"    {life.name}: {life.arrives}, {life.lasts}, {fields}, {life.cancels}")
            for line in found:
                print(f"  {line}")
    print(f"{count} of {len(outcomes)} scenarios differ")
    return count


def _main(mode: str, pattern: str) -> int:
    kept, expected = recorded()
    if mode != "record":
        start = start_reference_server if mode == "reference" else start_tritonserver
        return _report(kept, expected, _played(start, kept))
    scenarios = {
        (model, number): scenario(model, number)
        for model in configurations()
        if re.search(pattern, model)
        for number in range(_PER_MODEL)
    }
    first, second = (_played(start_tritonserver, scenarios) for _ in range(2))
    # On a busy machine, and where threads of the real server race, its answers vary.
    stable = {
        key: outcome for key, outcome in first.items() if not differences(outcome, second[key])
    }
    others = {key: answers for key, answers in expected.items() if key not in scenarios}
    _record(kept | scenarios, others | stable)
    return _report(scenarios, {key: simulated(key[0], scenarios[key]) for key in stable}, stable)


if __name__ == "__main__":
    sys.exit(_main(*[*sys.argv[1:], "", ""][:2]))
