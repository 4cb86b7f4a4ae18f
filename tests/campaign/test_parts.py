"""Parts of the campaign: saved inputs, forged data, measured callbacks, its tables."""

import asyncio
import random
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.attack import keep, kept, reduced
from benchmarks.attack.handles import forged
from benchmarks.attack.neighbours import _lie
from benchmarks.attack.programs import CALLBACK_S, ITERATION_S, MARK, install
from benchmarks.attack.watching import table

# -- reduction of failing inputs, and the folder of saved inputs


@given(st.binary(max_size=60), st.binary(max_size=60), st.binary(max_size=60))
def test_only_necessary_bytes_remain(before, between, after):
    failing = before + b"\x01" + between + b"\x02" + after
    found = reduced(failing, lambda data: b"\x02" in data.partition(b"\x01")[2])
    assert found == b"\x01\x02"


def test_pieces_are_removed_as_a_whole():
    pieces = (b"open", b"a", b"b", b"ask", b"c")
    found = reduced(pieces, lambda some: b"open" in some and b"ask" in some)
    assert found == (b"open", b"ask")


def test_the_number_of_trials_is_limited():
    asked = []
    reduced(bytes(1000), lambda data: bool(asked.append(data)), most_trials=7)
    assert len(asked) == 7


def test_saved_inputs_are_found_by_kind(tmp_path):
    path = keep("http", b"bad", tmp_path)
    assert path.parent == tmp_path / "http"
    assert kept("http", tmp_path) == [b"bad"]
    assert kept("frames", tmp_path) == []


# -- forged data


def test_a_forged_handle_is_never_valid():
    dice = random.Random(1)
    own = [[7, place, dice.getrandbits(64), dice.getrandbits(64)] for place in range(3)]
    stale = [[0] * 4, [7, 1, 2, 3]]
    made = [forged(dice, own, stale) for _ in range(500)]
    assert all(len(each) == 4 and each not in own for each in made)
    assert all(0 <= word < 2**64 for each in made for word in each)
    keys = {tuple(each[2:]): tuple(each[:2]) for each in own}
    assert [7, 1, 2, 3] in made  # read before
    assert any(keys.get(tuple(each[2:])) not in (None, tuple(each[:2])) for each in made)  # crossed
    assert len({tuple(each) for each in made}) > 100
    assert forged(dice, [], stale)


def frames(sent):
    while sent:
        text, data = struct.unpack_from("<Ii", sent)
        end = 8 + text + max(0, data)
        assert len(sent) >= end, "incomplete frame"
        yield sent[8:end]
        sent = sent[end:]


def test_every_frame_is_complete():
    dice = random.Random(1)
    packets = [list(frames(_lie(dice)[1:])) for _ in range(500)]
    assert all(packets)
    assert len({one for packet in packets for one in packet}) > 100


# -- measured callbacks, by a clock that the test moves


@pytest.fixture
def measured():
    """Return a function that runs callbacks of these CPU times and returns the reported lines."""
    now_s, lines = [0.0], []
    remove = install(lines.append, lambda: now_s[0])

    def spend(seconds: float) -> None:
        now_s[0] += seconds

    def run(*callbacks: float) -> list[str]:
        async def main() -> None:
            for seconds in callbacks:
                asyncio.get_running_loop().call_soon(spend, seconds)
            await asyncio.sleep(0)

        asyncio.run(main())
        return lines

    yield run
    remove()


def test_one_long_callback_is_reported_by_name(measured):
    (line,) = measured(0.001, CALLBACK_S + 0.001, CALLBACK_S - 0.001)
    assert line.startswith(f"{MARK}: 21 ms in <Handle")
    assert "spend" in line


def test_many_callbacks_of_one_iteration_are_reported(measured):
    count = int(ITERATION_S / 0.01) + 1
    assert measured(*[0.01] * (count - 2)) == []
    (line,) = measured(*[0.01] * count)
    assert line == f"{MARK}: 110 ms in all callbacks of one iteration"


# -- tables


def row(attack: str, server: str, **changes: object) -> dict[str, object]:
    quiet = {"answers": 9, "refused": 0, "lost": 0, "wrong": 0, "p99 ms": "16", "MiB": "+0"}
    return quiet | {"attack": attack, "server": server, "failures": []} | changes


def test_each_attack_has_a_row_and_each_server_a_column():
    rows = [
        row("nothing", "inline"),
        row("nothing", "triton", **{"p99 ms": "30", "MiB": "+5"}),
        row("mutated_calls", "triton", lost=2, failures=["the server ended with -11"]),
        row("clock_jumps", "inline", refused=1),
        row("clock_jumps", "triton", answers=0, failures=["it did not start"]),
    ]
    assert list(table(rows)) == [
        "| Attack | Ours, inline | The real server, 2.51 |",
        "| --- | --- | --- |",
        "| nothing | 16 ms, +0 MiB | 30 ms, +5 MiB |",
        "| mutated_calls | - | 16 ms, +0 MiB, 2 lost, the server ended with -11 |",
        "| clock_jumps | 16 ms, +0 MiB, 1 refused | it did not start |",
    ]


@pytest.mark.brute_force
def test_a_killed_process_fails_only_its_own_requests():
    program = [
        sys.executable,
        "-m",
        "benchmarks.attack.restarts",
        "--of",
        "process",
        "--kills",
        "1",
    ]
    run = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True)
    row = next(line for line in run.stdout.splitlines() if line.startswith("process host"))
    kills, answered, refused, lost = row.removeprefix("process host").split()[:4]
    assert (kills, lost) == ("1", "0")
    assert int(answered.replace(",", "")) > 0
    assert int(refused.replace(",", "")) <= 8
