"""Serves a prepared copy, sends each model a sample request, and prints the results."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from reference_server.command import cli, preflight
from reference_server.config import json_form
from reference_server.core.errors import ServerError
from reference_server.core.request import LATEST
from reference_server.observability import logs
from reference_server.repository.versions import State
from reference_server.server import Server
from reference_server.testing.model import Model, Response
from reference_server.trying.model import TriedModel
from reference_server.trying.overlay import Overlay
from reference_server.trying.samples import Inputs, Samples, body, shown

_CHECK = "reference-server check --here lists all faults"
_READY_S = 600.0
_REQUEST_S = 120.0
_PAUSE_S = 0.05
_PORTS = ("http", "grpc", "metrics")
_RUNS, _STAND_IN, _FAILS = "runs really", "with stand-ins", "does not run"


@dataclass(slots=True)
class Outcome:
    """A model's row in the table at the end."""

    model: str
    state: str
    reason: str = ""
    next_step: str = ""


class Trial:
    """One run: starts the server, replaces models that fail, sends requests, prints."""

    def __init__(
        self, overlay: Overlay, scratch: Path, out: TextIO, given: argparse.Namespace
    ) -> None:
        self._overlay = overlay
        self._scratch = scratch
        self._out = out
        self._given = given
        self._log_file = scratch / "server.log"
        self._samples = Samples(overlay.clone)
        self._outcomes: list[Outcome] = []
        self._failed: Exception | None = None
        self._has_ended = False

    def _print(self, text: str = "") -> None:
        print(text, file=self._out, flush=True)

    def describe(self, roots: Sequence[Path]) -> None:
        """Print what was changed in the copy."""
        self._print(f"Model repository: {roots[0]}, in the copy {self._overlay.root}")
        for other in roots[1:]:
            self._print(f"  not tried: {other} (--root chooses another repository)")
        for model in self._overlay.models.values():
            for note in model.notes:
                self._print(f"{model.name}: {note}")
            if model.stand_in:
                self._print(f"{model.name}: STAND-IN: {model.stand_in}")
        if packages := self._packages():
            verb = "installing" if self._given.install else "missing; --install installs them"
            self._print(f"Python packages ({verb}): pip install {' '.join(packages)}")

    def _packages(self) -> list[str]:
        models = self._overlay.models.values()
        return sorted({package for model in models for package in model.packages})

    def install(self) -> None:
        """Install missing packages into a temporary folder, and append it to `sys.path`."""
        packages = self._packages() if self._given.install else []
        if not packages:
            return
        target = self._scratch / "packages"
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(target)]
        if subprocess.run([*command, *packages], check=False).returncode:
            self._print("pip failed; the models that need these packages do not run")
            return
        sys.path.append(str(target))
        for model in self._overlay.models.values():
            if model.packages:
                model.packages, model.cure = [], ""

    def run(self) -> int:
        """Serve until a signal, or until the table is printed (`--once`); return the exit code.

        The code is 1 if a model does not run or the server fails, otherwise 0.
        """
        given = self._given
        options, _ = cli.parse(
            [
                f"--model-repository={self._overlay.root}",
                "--model-control-mode=explicit",
                "--load-model=*",
                "--exit-on-error=false",
                f"--log-file={self._log_file}",
                *(f"--{kind}-port={getattr(given, f'{kind}_port')}" for kind in _PORTS),
                *(f"--{kind}-address=127.0.0.1" for kind in _PORTS),  # only this machine
            ]
        )
        logs.configure(options.log, splits=options.profile.splits_log)
        logging.getLogger("reference_server").propagate = False
        with (
            self._log_file.open("a") as log_file,
            contextlib.redirect_stdout(log_file),  # the output of models goes into the log
            contextlib.redirect_stderr(log_file),
            logs.named_output(),
        ):
            try:
                preflight.check_ports(options)
                asyncio.run(self._serve(Server(options)))
            except ServerError as error:
                self._failed = error
        if self._failed is not None:
            self._print(f"error: {self._failed}")
            return 1
        return any(outcome.state == _FAILS for outcome in self._outcomes)

    async def _serve(self, server: Server) -> None:
        loop = asyncio.get_running_loop()

        def examine() -> None:
            try:
                self._wait_until_live()
                self._examine(server, loop)
            except Exception as error:
                self._failed = error
            if self._given.once or self._failed is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(server.stop)

        thread = threading.Thread(target=examine, daemon=True)
        thread.start()
        try:
            await server.serve()
        finally:
            self._has_ended = True
        if self._given.once:
            await asyncio.to_thread(thread.join)

    def _wait_until_live(self) -> None:
        """Wait until the server listens on its HTTP port, which it opens last, after all loads."""
        deadline = time.monotonic() + _READY_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._given.http_port), timeout=5).close()
                return
            except OSError:
                if self._has_ended or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)

    # -- models

    def _examine(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        reasons = self._failures(server)
        self._learn_signatures(server, reasons)
        if self._replace(reasons):
            self._overlay.stand_ins.mark()
            for name in self._load_order():
                with contextlib.suppress(ServerError):
                    server.control.load(name)
            reasons = self._failures(server)
        for name in self._load_order():
            model = self._overlay.models[name]
            self._print()
            if name in reasons:
                self._print(f"{name}: does not load: {_brief(reasons[name])}")
                cure = model.cure or _CHECK
                self._outcomes.append(Outcome(name, _FAILS, _brief(reasons[name]), cure))
            else:
                self._request(model, Model(server.gateway, loop, name))
        self._table()

    def _learn_signatures(self, server: Server, failed: Collection[str]) -> None:
        """Add inputs and outputs that a load has completed to the configurations of the copy."""
        for name, model in self._overlay.models.items():
            if model.config is not None and not model.config.input and name not in failed:
                known = json_form.read(server.gateway.model_config(name, LATEST))
                model.config.input.extend(known.input)
                model.config.output.extend(known.output)
                model.config.max_batch_size = known.max_batch_size

    def _load_order(self) -> list[str]:
        """Return the names of the models, with ensembles after the models of their steps."""
        models = self._overlay.models
        plain = [name for name in sorted(models) if not models[name].steps]
        rest = [name for name in sorted(models) if models[name].steps]
        ordered = list(plain)
        while rest:
            ready = [name for name in rest if set(models[name].steps) <= {*ordered}] or rest[:1]
            ordered += ready
            rest = [name for name in rest if name not in ready]
        return ordered

    def _failures(self, server: Server) -> dict[str, str]:
        found: dict[str, str] = {}
        ready = set()
        for status in server.repository.statuses():
            if status.state is State.READY:
                ready.add(status.model)
            else:
                found[status.model] = status.reason
        models = self._overlay.models
        return {name: found.get(name, "it is not loaded") for name in models if name not in ready}

    def _replace(self, reasons: dict[str, str]) -> bool:
        """Replace failed models with stand-ins. Return True if at least one was replaced."""
        found = False
        for name, reason in reasons.items():
            model = self._overlay.models[name]
            if model.steps or model.stand_in:
                continue
            needs = f"needs pip install {' '.join(model.packages)}: " if model.packages else ""
            if self._overlay.stand_ins.replace(name, f"{needs}{_brief(reason)}"):
                found = True
                self._print(f"{name}: STAND-IN: {model.stand_in}")
        return found

    # -- requests

    def _request(self, model: TriedModel, client: Model) -> None:
        config = client.config()
        error = "its inputs are too large for a sample"
        for inputs in self._samples.requests(config):
            started = time.perf_counter()
            answer, error = _answer(client, inputs, config)
            if answer is not None:
                passed = time.perf_counter() - started
                self._print(f"{model.name}: {len(answer)} response(s) in {passed * 1000:.1f} ms")
                self._print(f"  in:  {shown(inputs)}")
                for response in answer[:1]:
                    self._print(f"  out: {shown(response.outputs)}")
                self._print(f"  {self._curl(model.name, inputs, config)}")
                used = self._overlay.stand_ins.used_by(model.name)
                if not used:
                    self._outcomes.append(Outcome(model.name, _RUNS))
                    return
                reason = model.stand_in or f"stand-ins for {', '.join(used)}"
                cure = model.cure if model.stand_in else "see those models"
                self._outcomes.append(Outcome(model.name, _STAND_IN, reason, cure))
                return
        self._print(f"{model.name}: no answer: {_brief(error)}")
        cure = "send a request with the inputs that its code expects"
        self._outcomes.append(Outcome(model.name, _FAILS, _brief(error), cure))

    def _curl(self, name: str, inputs: Inputs, config: dict[str, Any]) -> str:
        """Return a command that sends the request; long bodies are in a file."""
        content, json_length = body(inputs, config)
        url = f"http://localhost:{self._given.http_port}/v2/models/{name}"
        policy = config.get("model_transaction_policy") or {}
        if policy.get("decoupled"):
            fields = {key: array.reshape(-1).tolist() for key, array in inputs.items()}
            if json_length:
                return f"curl -s {url}  # decoupled: its inputs need a gRPC stream"
            first = ", ".join(f'"{key}": {_json(each)}' for key, each in fields.items())
            return f"curl -s {url}/generate_stream -d '{{{first}}}'"
        if not json_length:
            return f"curl -s {url}/infer -d '{content.decode()}'"
        file = self._scratch / f"{name}.request"
        file.write_bytes(content)
        header = f"Inference-Header-Content-Length: {json_length}"
        return f"curl -s {url}/infer -H '{header}' --data-binary @{file}"

    def _table(self) -> None:
        self._print()
        width = max((len(outcome.model) for outcome in self._outcomes), default=5)
        self._print(f"{'MODEL':{width}}  {'STATE':14}  WHY / WHAT TO DO NEXT")
        for outcome in self._outcomes:
            text = outcome.reason
            if outcome.next_step:
                text = f"{text} / {outcome.next_step}"
            self._print(f"{outcome.model:{width}}  {outcome.state:14}  {text}".rstrip())
        if any(outcome.state == _STAND_IN for outcome in self._outcomes):
            self._print("Stand-ins return made-up values, in responses with the header Stand-In.")
        if not self._given.once:
            self._print(f"Log: {self._log_file}")
            self._print(f"Live page: http://localhost:{self._given.metrics_port}  Ctrl-C stops.")


def _json(values: Sequence[Any]) -> str:
    plain = [each.decode() if isinstance(each, bytes) else each for each in values]
    return json.dumps(plain[0] if len(plain) == 1 else plain)


def _answer(
    client: Model, inputs: Inputs, config: dict[str, Any]
) -> tuple[list[Response] | None, str]:
    """Send a request; return the responses, or None and the error."""
    found: list[Response] = []
    errors: list[str] = []
    options: dict[str, Any] = {}
    if config.get("sequence_batching") is not None:
        options = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}

    def send() -> None:
        try:
            found.extend(client.stream(inputs, **options))
        except Exception as error:
            errors.append(str(error))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    thread.join(_REQUEST_S)
    if thread.is_alive():
        return None, f"no response in {_REQUEST_S:.0f} s"
    if errors or not found:
        return None, (errors or ["no response"])[0]
    return found, ""


def _brief(reason: str) -> str:
    """Return the first line of an error, and the exception at the end of a traceback."""
    lines = [line.strip() for line in reason.strip().splitlines() if line.strip()]
    first = lines[0] if lines else "unknown"
    first = first.removeprefix("version 1 is at UNAVAILABLE state: ").removeprefix("Internal: ")
    first = first.partition(", try specifying runtime")[0]
    return textwrap.shorten(first, 240, placeholder=" ...")
