"""Another process with a simulated device, controlled by a test."""

import json
import os
import subprocess
import sys
from pathlib import Path

import ascend_simulator

_PATHS = [Path(ascend_simulator.__file__).parents[1], Path(__file__).parents[2]]


class Neighbour:
    """A proxy: `neighbour.rt.malloc(64, 0)` calls there and returns the result or the violated
    rule."""

    def __init__(self):
        path = os.pathsep.join(map(str, _PATHS))
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
        )
        self.rt = _Namespace(self, "rt")
        self.mdl = _Namespace(self, "mdl")

    def begin(self, **settings):
        """Start a new process state there: initialised, device 0 current."""
        self.call("begin", settings)
        assert [self.call("init"), self.rt.set_device(0)] == [0, 0]

    def call(self, name, *arguments):
        self._process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return tuple(answer) if isinstance(answer, list) else answer

    def content(self, ptr, nbytes):
        return bytes.fromhex(self.call("content", ptr, nbytes))

    def fill(self, ptr, given):
        self.call("fill", ptr, given.hex())

    def kill(self):
        """Kill the process as `kill -9` does."""
        self._process.kill()
        self._process.wait()

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self.kill()


class _Namespace:
    def __init__(self, neighbour, name):
        self._neighbour = neighbour
        self._name = name

    def __getattr__(self, function):
        return lambda *given: self._neighbour.call(f"{self._name}.{function}", *given)


def _serve():
    from simulator.support.driving import content, fill

    from ascend_simulator import Settings, SimulatorViolation, reset_for_tests
    from ascend_simulator.interface.exports import functions

    known = {
        f"{space}.{name}": each
        for space in ("rt", "mdl")
        for name, each in functions(space).items()
    }
    known.update(functions(""))
    known["begin"] = lambda settings: reset_for_tests(Settings(**settings)) and None
    known["content"] = lambda ptr, nbytes: content(ptr, nbytes).hex()
    known["fill"] = lambda ptr, given: fill(ptr, bytes.fromhex(given))
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = known[name](*arguments)
        except SimulatorViolation as violation:
            answer = violation.rule
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _serve()
