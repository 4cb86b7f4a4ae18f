"""Run one step of a longer command: one line on the terminal, all that it prints in a file.

    python tools/step.py LOG TITLE COMMAND...

Needs nothing but Python, since it also makes the environment. Of a step that fails the end of what
it printed is shown, and its exit code is this one's.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

SHOWN_LINES = 30


def main(log: Path, title: str, command: list[str]) -> int:
    """The exit code of `command`, whose output is added to `log`."""
    print(f"{title} ... ", end="", flush=True)
    started = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a+b") as file:
        file.write(f"\n# {title}: {' '.join(command)}\n".encode())
        file.flush()
        begin = file.tell()
        code = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, check=False
        ).returncode
        print(f"{'failed after ' * bool(code)}{time.monotonic() - started:.1f} s", flush=True)
        if code:
            file.seek(begin)
            lines = file.read().decode(errors="replace").splitlines()
            print("\n".join(lines[-SHOWN_LINES:]))
            print(f"{' '.join(command)}: exit code {code}; all of it is in {log}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
