"""Many requests for a long time: what a server holds, and how that grows with each million."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import numpy as np

from campaign import mutators
from campaign.ground import Ground
from campaign.watching import Facts, facts

_SAMPLE_S = 2.0
_LEAST_SAMPLES = 5
_TURN = (
    *(mutators.mutated_requests, mutators.mutated_requests, mutators.mutated_requests),
    *(mutators.mutated_calls, mutators.mutated_bytes, mutators.mutated_frames),
)


def slopes(requests: list[int], held: list[Facts]) -> tuple[float, float, float]:
    """MiB, descriptors and threads that are held more after each million requests.

    The first third is left out: what is kept once is no slope.
    """
    begin = len(held) // 3
    millions = np.array(requests[begin:]) / 1e6
    if len(millions) < _LEAST_SAMPLES or millions[0] == millions[-1]:
        return (float("nan"),) * 3
    columns = [
        [one.mib for one in held[begin:]],
        [float(one.descriptors) for one in held[begin:]],
        [float(one.threads) for one in held[begin:]],
    ]
    first, second, third = (float(np.polyfit(millions, column, 1)[0]) for column in columns)
    return first, second, third


def endurance(ground: Ground) -> str:
    """Mutated requests over both fronts, in turns of two seconds, as long as there is time."""
    count, requests, held = 0, [0], [facts(ground.server)]
    dice = random.Random(ground.dice.random())
    started = time.monotonic()
    for number, left in enumerate(ground.over()):
        attack = _TURN[number % len(_TURN)]
        did = attack(replace(ground, dice=dice, seconds=min(_SAMPLE_S, left)))
        count += int(did.split()[0].replace(",", ""))
        requests.append(count)
        held.append(facts(ground.server))
    mib, descriptors, threads = slopes(requests, held)
    return (
        f"{count:,} requests in {time.monotonic() - started:,.0f} s; for each million "
        f"{mib:+.1f} MiB, {descriptors:+.1f} descriptors, {threads:+.1f} threads"
    )
