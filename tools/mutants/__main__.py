"""Mutants: small wrong changes to the packages, to measure which changes the tests detect.

    python -m tools.mutants choose --room ascend --count 240 --seed 17 > build/mutants.json
    python -m tools.mutants map --room ascend build/map.json
    python -m tools.mutants play build/mutants.json build/played.jsonl --map build/map.json
    python -m tools.mutants table build/played.jsonl
    python -m tools.mutants compare played-before.jsonl played-after.jsonl

`choose` spreads mutants over the folders of a room (a part of the packages), or takes them from the
files of `--only`. A mutant is identified by the statement that it changes and the function around
it, not by its line. So it can be played in a tree with other files and names (`--tree`): there, the
most similar statement that allows the change is changed. A mutant that is not found is reported.

`map` runs the tests of the room once, and stores which tests run which lines (coverage.py). `play`
applies one mutant at a time to the tree, runs the tests of its lines, the fastest first, until a
test fails, and reverts the mutant. The tree must be a clean checkout with an environment in
`.venv`, and must not be edited during the run. Each result is written immediately; called again
with the same file, `play` continues with the missing mutants.

`table` counts by folder. Mutants in `equivalent.json` survive without a visible effect and are
counted separately.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from tools.mutants.playing import Map, lost_kills, play, read, record, shown, survivors, table
from tools.mutants.sites import ROOMS, Site, choose

ROOT = Path(__file__).resolve().parents[2]


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, dest="command")
    choosing = commands.add_parser("choose", help="print mutants of a room")
    choosing.add_argument("--count", type=int, default=200)
    choosing.add_argument("--seed", type=int, default=11)
    choosing.add_argument("--only", metavar="FILE", nargs="+", help="files of the room (all)")
    mapping = commands.add_parser("map", help="write which tests run which lines")
    mapping.add_argument("map", type=Path)
    for each in (choosing, mapping):
        each.add_argument("--room", choices=ROOMS, required=True)
    playing = commands.add_parser("play", help="write the results of mutants")
    playing.add_argument("mutants", type=Path)
    playing.add_argument("played", type=Path)
    playing.add_argument("--map", type=Path, required=True)
    for each in (choosing, mapping, playing):
        each.add_argument("--tree", type=Path, default=ROOT)
    counting = commands.add_parser("table", help="print the results by folder")
    counting.add_argument("played", type=Path, nargs="+")
    counting.add_argument("--json", action="store_true")
    comparing = commands.add_parser("compare", help="print which kills were lost")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command."""
    options = _arguments().parse_args(arguments)
    if options.command == "choose":
        chosen = choose(
            options.tree.resolve(), options.room, options.count, options.seed, options.only
        )
        print(json.dumps([asdict(site) for site in chosen], indent=1))
    elif options.command == "map":
        record(options.tree.resolve(), options.room, options.map)
    elif options.command == "play":
        options.played.touch()
        known = {
            json.dumps(line["mutant"], sort_keys=True) for line in read([options.played]).values()
        }
        given = json.loads(options.mutants.read_text())
        missing = [Site(**site) for site in given if json.dumps(site, sort_keys=True) not in known]
        play(options.tree.resolve(), missing, Map(options.map), options.played)
    elif options.command == "table":
        rooms, left = table(options.played), survivors(options.played)
        if options.json:
            print(json.dumps({"rooms": rooms, "survivors": left}, indent=1))
        else:
            print("\n".join([shown(rooms), *left]))
    else:
        lost = lost_kills(options.before, options.after)
        print("\n".join([*lost, f"{len(lost)} kills lost"]))
        return bool(lost)
    return 0


if __name__ == "__main__":
    sys.exit(main())
