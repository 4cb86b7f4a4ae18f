"""Completes a partial config.pbtxt from the model's graph, for `auto_complete_config`.

Servers take max_batch_size, inputs, outputs and the scheduler from `auto_complete_config`, but no
parameters. As `initialize` runs in another process, a file passes the parameters to it. The key of
the file is the state of the version folder and the completed configuration.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, TypeAlias

from ge_runtime.child_process import run_graph_process
from ge_runtime.errors import ArtifactFault
from ge_runtime.scheduling.kept_costs import CacheFile, cache_root

Json: TypeAlias = Mapping[str, Any]

_GRAPHS: Final[Mapping[str, tuple[str, ...]]] = {
    "auto": ("model.onnx", "model.pt2"),
    "onnxruntime": ("model.onnx",),
    "torch": ("model.pt2",),
}
"""The files from which a configuration is derived, in order of preference, by value of `engine`."""
_POLICY: Final = "model_transaction_policy"
"""The section that marks a completed configuration; its default value has no other effect. If
config.pbtxt has this section, the stored parameters are looked up at each load."""
_BY_HAND: Final = ("aipp", "generate", "jpeg", "prepared", "resident", "rows", "stages", "state")
"""First parts of parameters of models whose inputs are not the inputs of one graph."""
_ENTRIES_MOST: Final = 256
_TIMEOUT_S: Final = 600
_DERIVING: Final = "ge_runtime.cli.complete"
"""The module whose `main` derives a completion; `adapters` may not import `cli`."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The sections and parameters that were derived for a configuration."""

    sections: Json
    """The sections of the completed configuration that changed."""
    parameters: Mapping[str, str]
    """The derived parameters; config.pbtxt does not have them."""
    lines: Sequence[str]
    """The decisions with their evidence, for the log."""

    @classmethod
    def of_json(cls, data: Json) -> Completion:
        """Return a completion. Raises ValueError if `data` has another form."""
        sections, parameters, lines = (data.get(key) for key in cls.__slots__)
        if not (
            isinstance(sections, Mapping)
            and isinstance(parameters, Mapping)
            and isinstance(lines, list)
            and all(isinstance(text, str) for text in (*parameters.values(), *lines))
        ):
            raise ValueError("expected sections, parameters and lines")
        return cls(sections, parameters, lines)

    def as_json(self) -> dict[str, object]:
        """Return the data that `of_json` reads."""
        return {key: getattr(self, key) for key in self.__slots__}


def lacking(config: Json) -> list[str]:
    """Return the names of lines that config.pbtxt lacks; empty if nothing has to be derived."""
    given = texts(config)
    found = [f"{kind}s" for kind in ("input", "output") if not config.get(kind)]
    for kind in ("input", "output"):
        for tensor in config.get(kind) or ():
            found += _lacking_in(kind, tensor, given, batched=bool(config.get("max_batch_size")))
    for tensor in config.get("input") or ():
        axes = given.get(f"axes.{tensor['name']}", "").split(",")
        found += [f"limit.{axis.strip()}" for axis in axes if axis.strip()]
    return [name for name in dict.fromkeys(found) if name not in given]


def _lacking_in(kind: str, tensor: Json, given: Json, *, batched: bool) -> Iterator[str]:
    name = tensor["name"]
    dims = dims_of(tensor)
    if tensor.get("data_type", "TYPE_INVALID") == "TYPE_INVALID":
        yield f"data_type of {kind} '{name}'"
    if not dims and "reshape" not in tensor:
        yield f"dims of {kind} '{name}'"
    # Without a batch dimension each request is executed alone, so outputs need no names of sizes.
    needed = kind == "input" or batched
    passed = f"pass.{name}" in given or name in (
        text for key, text in given.items() if key.startswith("pass.")
    )
    if -1 in dims and needed and not passed:
        yield f"axes.{name}"


def texts(config: Json) -> dict[str, str]:
    """Return the parameters of a configuration."""
    parameters: Json = config.get("parameters") or {}
    return {key: str(value.get("string_value", "")) for key, value in parameters.items()}


def dims_of(tensor: Json) -> list[int]:
    """Return the dims of a tensor as the model receives it, after `reshape`."""
    reshape = tensor.get("reshape")
    dims = tensor.get("dims") if reshape is None else reshape.get("shape")
    return [int(dim) for dim in dims or ()]


def complete(
    config: MutableMapping[str, Any], version_dir: Path, log: Callable[[str], None]
) -> None:
    """Complete a configuration in place. Blocks for seconds if something has to be derived.

    Args:
        config: The model configuration as JSON. Written values do not change.
        version_dir: The folder of the model's version.
        log: Receives a line for each decision; it is not called if the configuration is complete.

    Raises:
        ArtifactFault: No configuration was found, or experiments contradict a written line.
    """
    wanted = lacking(config)
    graph = _graph(config, version_dir)
    if not wanted:
        return
    name, lacks = config["name"], f"config.pbtxt lacks {', '.join(wanted)}"
    if graph is None:
        compiled = [*version_dir.glob("*.om"), *version_dir.glob("*.air")]
        if compiled and not {"inputs", "outputs"}.isdisjoint(wanted):
            raise ArtifactFault(
                f"{name}: {lacks}: found {compiled[0].name}, expected model.onnx or model.pt2, "
                "from which they are derived. Put the graph beside it, or copy the lines that "
                "`ge-runtime init model.onnx` writes"
            )
        return
    found = _load_kept(version_dir, config)
    if found is None:
        log(f"{name}: {lacks}: deriving it from executions of {graph.name}")
        found = _derive(config, graph, wanted)
        _save_kept(version_dir, config, found)
    else:
        log(f"{name}: {lacks}: an earlier load has derived it from {graph.name}")
    for line in found.lines:
        log(f"{name}: {line}")
    config.update(found.sections)
    config.setdefault(_POLICY, {}).setdefault("decoupled", False)
    if found.parameters:
        _save_kept(version_dir, config, found)


def restore(config: Json, version_dir: Path) -> tuple[Json, list[str]]:
    """Return the configuration with the parameters that `complete` derived.

    Args:
        config: The configuration that a server passes to `initialize`.
        version_dir: The folder of the model's version.

    Returns:
        The configuration, and lines for the log. Without a file, for example because the cache
        folder is read-only, the parameters are derived again.

    Raises:
        ArtifactFault: As `complete`.
    """
    policy = config.get(_POLICY)
    graph = _graph(config, version_dir)
    if policy is None or graph is None:
        return config, []
    found = _load_kept(version_dir, config)
    if found is None:
        wanted = lacking(config)
        if policy.get("decoupled") or not wanted:
            return config, []
        found = _derive(config, graph, wanted)
    parameters = {key: {"string_value": text} for key, text in found.parameters.items()}
    line = ", ".join(f"{key}={text!r}" for key, text in found.parameters.items())
    merged = {**parameters, **(config.get("parameters") or {})}
    return {**config, "parameters": merged}, [f"derived parameters: {line}"] if line else []


def _graph(config: Json, version_dir: Path) -> Path | None:
    """Return the file from which a configuration can be derived, if any."""
    keys = texts(config)
    if config.get("batch_input") or any(key.split(".")[0] in _BY_HAND for key in keys):
        return None
    files = (version_dir / name for name in _GRAPHS.get(keys.get("engine", "auto"), ()))
    return next((file for file in files if file.is_file()), None)


def _derive(config: Json, graph: Path, wanted: Sequence[str]) -> Completion:
    """Derive a completion in another process, which a graph may crash."""
    name = config.get("name", "")
    lacks = (
        f"{name}: config.pbtxt lacks {', '.join(wanted)}, and deriving it from {graph.name} failed"
    )
    request = json.dumps({"graph": str(graph.absolute()), "config": config})
    child = run_graph_process(_DERIVING, timeout_s=_TIMEOUT_S, stdin=request)
    with suppress(ValueError):  # no JSON, or of another form
        answer = json.loads(child.stdout)
        if "error" in answer:
            raise ArtifactFault(f"{lacks}: {answer['error']}")
        return Completion.of_json(answer)
    raise ArtifactFault(
        f"{lacks}: found no result of the process that executes the graph ({child.outcome.value}: "
        f"{child.error or sys.executable}); write these lines by hand (docs/parameters.md)"
    )


def _file(version_dir: Path, config: Json) -> CacheFile | None:
    """Return the file of a configuration; None without a cache folder or a version folder."""
    root = cache_root()
    if root is None:
        return None
    try:
        files = [
            [str(path.relative_to(version_dir)), stat.st_size, stat.st_mtime_ns]
            for path in sorted(version_dir.rglob("*"))
            # Python changes __pycache__ when it imports modules.
            if "__pycache__" not in path.parts and path.is_file()
            for stat in (path.stat(),)
        ]
    except OSError:
        return None
    tensors = {
        kind: [
            [
                *(tensor["name"], tensor.get("data_type"), dims_of(tensor)),
                *(bool(tensor.get(key)) for key in ("optional", "allow_ragged_batch")),
            ]
            for tensor in config.get(kind) or ()
        ]
        for kind in ("input", "output")
    }
    schedulers = [key for key in ("dynamic_batching", "sequence_batching") if key in config]
    written = [config.get("max_batch_size") or 0, tensors, texts(config), schedulers]
    libraries = (f"{name} {_version(name)}" for name in ("ge-runtime", "onnxruntime"))
    subject = {
        "folder": str(version_dir.resolve()),
        "files": json.dumps(files),
        "configuration": json.dumps(written, sort_keys=True),
        "libraries": ", ".join(libraries),
    }
    name = str(config.get("name", ""))
    return CacheFile(root / "configurations", name, subject, "derived configurations")


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def _load_kept(version_dir: Path, config: Json) -> Completion | None:
    file = _file(version_dir, config)
    data = None if file is None else file.load()
    if file is None or data is None:
        return None
    try:
        return Completion.of_json(data)
    except ValueError as error:
        file.ignored(error)
        return None


def _save_kept(version_dir: Path, config: Json, found: Completion) -> None:
    file = _file(version_dir, config)
    if file is None or not file.save(found.as_json()):
        return
    with suppress(OSError):  # another process may remove files, too
        entries = sorted(file.path.parent.glob("*.json"), key=os.path.getmtime, reverse=True)
        for oldest in entries[_ENTRIES_MOST:]:
            oldest.unlink(missing_ok=True)
