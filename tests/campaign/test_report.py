"""The table of docs/results/campaign.md."""

from benchmarks.attack.watching import table


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
