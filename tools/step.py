"""Run one step of a longer command: print one line, and write the step's output to a file.

    python tools/step.py LOG TITLE COMMAND...

Needs only the standard library, since it is used to create the environment. If the step fails, the
end of its output is printed, and this command has the step's exit code.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

SHOWN_LINES = 30


def main(log: Path, title: str, command: list[str]) -> int:
    """Run `command`, append its output to `log`, and return its exit code."""
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
            print(f"{' '.join(command)}: exit code {code}; full output: {log}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
