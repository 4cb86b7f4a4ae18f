"""Finds requirements of a model that this machine lacks (`reference-server check --here`).

No code of the model is executed, and the network is not used. Packages are looked up, but not
imported.
"""

from __future__ import annotations

import ast
import mmap
import os
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig as ConfigProto

from reference_server.backends.environments import PARAMETER
from reference_server.checking.import_time import CodeFault, is_never, parsed
from reference_server.checking.layout import FileFault
from reference_server.core.errors import FieldPath

#: Modules that the server provides to each model.
_GIVEN = frozenset({"triton_python_backend_utils", "c_python_backend_utils"})
#: The package of a module on PyPI, if the names differ.
_PACKAGES = {
    "PIL": "pillow",
    "Crypto": "pycryptodome",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cupy": "cupy-cuda12x",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "fitz": "pymupdf",
    "google": "protobuf",
    "paddle": "paddlepaddle",
    "ruamel": "ruamel.yaml",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "tritonclient": "tritonclient[all]",
    "yaml": "pyyaml",
}
#: For each backend: the module that executes its models, and the module's package on PyPI.
_BACKEND_PACKAGES = {
    "ge": ("ge_runtime", "ge-runtime"),
    "onnxruntime": ("onnxruntime", "onnxruntime"),
    "openvino": ("openvino", "openvino"),
    "pytorch": ("torch", "torch"),
}
_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})
#: Functions that read the file or folder in their first argument.
_OPENERS = frozenset(
    {"open", "load", "imread", "read_csv", "read_text", "listdir", "InferenceSession", "Path",
     "from_file", "from_pretrained", "SentenceTransformer", "safe_open", "load_model", "chdir",
     "load_state_dict_from_file", "CDLL", "YOLO", "AutoModel", "WhisperModel", "joblib_load"}
)  # fmt: skip
#: Functions of `_OPENERS` whose argument may be the name of a model in a hub.
_HUBS = frozenset({"from_pretrained", "SentenceTransformer"})
_ABSOLUTE = re.compile(r"/[\w.+-]+(?:/[\w.+-]+)+/?$")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+$")
_RELATIVE = re.compile(r"(?:\.{1,2}/)?[\w.-]+(?:/[\w.-]+)*\.\w{2,11}$|\.{1,2}/[\w./-]+$")
_CUDA = re.compile(r"cuda(?::\d+)?$")
_TENSOR_FILES = {".onnx", ".pt", ".pt2", ".xml", ".plan", ".engine"}
#: An entry of an ONNX tensor's external data: the key "location", and the name of the file.
_LOCATION = re.compile(rb"\x0a\x08location\x12([\x01-\x7f])")
_MOST_LOCATIONS = 10_000


def has_gpu() -> bool:
    """Return True if the machine has an NVIDIA GPU with its driver."""
    return Path("/dev/nvidiactl").exists()


def pip_name(module: str) -> str:
    """Return the name of the package on PyPI that probably contains a module."""
    return _PACKAGES.get(module, module.replace("_", "-"))


def _search_path(environment: Path | None) -> list[str] | None:
    """Return the search path of a model's own environment; None for the server's environment."""
    if environment is None:
        return None
    found = [str(path) for path in sorted(environment.glob("lib/python3*/site-packages"))]
    return [*found, *(path for path in sys.path if "site-packages" not in path)]


def _find(name: str, search_path: Sequence[str] | None = None) -> bool | None:
    """Return True if a module is installed. Nothing is imported.

    Returns None if only the module's package is installed: importing the package may create the
    module.
    """
    path = search_path
    first, *rest = name.split(".")
    try:
        spec = find_spec(first) if path is None else PathFinder.find_spec(first, path)
    except ValueError:  # an imported module without a specification
        return True
    if spec is None:
        return False
    is_namespace = spec.origin is None
    for part in rest:
        if spec.submodule_search_locations is None:
            return True
        found = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations)
        if found is None:
            return False if is_namespace else None
        spec = found
    return True


class MachineUse(ast.NodeVisitor):
    """Unmet requirements of a model's code and of the modules in the model's folder.

    A requirement is certain unless a condition or an exception handler surrounds it.
    """

    def __init__(self, file: Path, environment: Path | None = None) -> None:
        """Read `file`, a model's code, and the modules of its folder that it imports."""
        #: Missing modules: the top-level name, or the full name if the package is installed.
        self.missing: dict[str, None] = {}
        self.faults: list[CodeFault] = []
        self._roots = (file.parent, file.parent.parent)
        self._search_path = _search_path(environment)
        self._seen: set[Path] = set()
        self._file = file
        self._is_certain = True
        self._has_gpu = has_gpu()
        self._follow(file)

    def _follow(self, file: Path) -> None:
        if file in self._seen or len(self._seen) > 1000:
            return
        self._seen.add(file)
        try:
            tree = parsed(file)
        except (OSError, SyntaxError, ValueError):
            return  # reported elsewhere
        before = self._file, self._is_certain
        self._file = file
        source = ast.unparse(tree)
        #: True if the code checks whether a GPU is available.
        self._checks_for_gpu = "is_available" in source or "device_count" in source
        self._changes_path = "sys.path" in source
        self.visit(tree)
        self._file, self._is_certain = before

    # -- certainty

    def _uncertain(self, nodes: Iterable[ast.AST]) -> None:
        before, self._is_certain = self._is_certain, False
        for node in nodes:
            self.visit(node)
        self._is_certain = before

    def visit_If(self, node: ast.If) -> None:
        if is_never(node.test):
            nodes: Sequence[ast.AST] = node.orelse
        else:
            self.visit(node.test)
            nodes = [*node.body, *node.orelse]
        self._uncertain(nodes)

    def visit_Try(self, node: ast.Try) -> None:
        names = {
            part.id
            for handler in node.handlers
            for part in ast.walk(handler.type or ast.Name("Exception"))
            if isinstance(part, ast.Name)
        }
        if not names & _IMPORT_ERRORS:
            self.generic_visit(node)
            return
        raises = any(isinstance(part, ast.Raise) for part in _parts(node.handlers))
        if raises:
            for part in node.body:
                self.visit(part)
        else:
            imports = (ast.Import, ast.ImportFrom)
            self._uncertain(part for part in node.body if not isinstance(part, imports))
        self._uncertain([*node.handlers, *node.orelse])
        for part in node.finalbody:
            self.visit(part)

    # -- imports

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._import(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level:
            folder = self._file.parent
            for _ in range(node.level - 1):
                folder = folder.parent
            for name in [node.module] if node.module else [alias.name for alias in node.names]:
                self._own(name, [folder])
        elif node.module:
            found = self._import(node, node.module)
            for alias in node.names if found else ():
                self._own(f"{node.module}.{alias.name}", self._roots)

    def _import(self, node: ast.stmt, name: str) -> bool:
        """Follow a module of the model, or report a missing module. Return True if it was found."""
        first = name.split(".")[0]
        if first in _GIVEN or self._own(name, self._roots):
            return True
        found = _find(name, self._search_path)
        if found or (self._changes_path and self._is_below(first)):
            return True
        whole = name if _find(first, self._search_path) else first
        if whole not in self.missing:
            self.missing[whole] = None
            text = f"No module named '{whole}' on this machine"
            is_certain = found is False
            self._add(node, text, f"pip install {pip_name(first)}", is_certain=is_certain)
        return False

    def _own(self, name: str, folders: Sequence[Path]) -> bool:
        """Follow the import of a module in `folders`; return False if it is not there."""
        for folder in folders:
            place = folder.joinpath(*name.split("."))
            for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
                if file.is_file():
                    self._follow(file)
                    return True
            if place.is_dir() or any(place.parent.glob(f"{place.name}.*.so")):
                return True
        return False

    def _is_below(self, name: str) -> bool:
        """Return True if the repository has the module: code may add its folder to sys.path."""
        above = self._roots[1].parent
        patterns = (f"*/{name}.py", f"*/{name}", f"*/*/{name}.py", f"*/*/{name}", f"{name}*")
        return any(any(above.glob(pattern)) for pattern in patterns)

    # -- paths and devices

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else ""
        name = function.id if isinstance(function, ast.Name) else name
        given = [*node.args[:1], *(word.value for word in node.keywords[:1])]
        for value in given if name in _OPENERS else ():
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                self._check_path(value, value.value, name)
        devices = [*node.args, *(each.value for each in node.keywords if each.arg == "device")]
        texts = (each.value for each in devices if isinstance(each, ast.Constant))
        is_cuda = name == "cuda" and isinstance(function, ast.Attribute) and not node.args
        if name in ("to", "device", "pipeline", "from_pretrained"):
            is_cuda |= any(isinstance(text, str) and _CUDA.match(text) for text in texts)
        if is_cuda and not (self._has_gpu or self._checks_for_gpu):
            text = f"`{ast.unparse(node)[:80]}` needs a GPU, and this machine has none"
            self._add(node, text, "choose the device by `torch.cuda.is_available()`")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        value = node.value
        text = value.value if isinstance(value, ast.Constant) else None
        if isinstance(text, str) and _ABSOLUTE.match(text):
            self._check_path(value, text, "", is_certain=False)
        self.generic_visit(node)

    def _check_path(
        self, node: ast.expr, text: str, opener: str, *, is_certain: bool = True
    ) -> None:
        if Path(text).exists():
            return
        if _ABSOLUTE.match(text):
            hint = "put the file into the model's folder, or start with `try --map`"
            found = f"'{text}' does not exist on this machine"
        elif opener in _HUBS and (_HUB_NAME.match(text) or "/" not in text):
            if _is_cached(text):
                return
            found = f"'{text}' is loaded from a model hub, and is not in the local cache"
            hint = f"huggingface-cli download {text}"
        elif _RELATIVE.match(text):
            found = f"'{text}' does not exist in the working directory {Path.cwd()}"
            hint = "join it with the folder of `__file__`, or with args['model_repository']"
        else:
            return
        self._add(node, found, hint, is_certain=is_certain)

    def _add(
        self, node: ast.stmt | ast.expr, text: str, hint: str, *, is_certain: bool = True
    ) -> None:
        certain = is_certain and self._is_certain
        fault = CodeFault(node.lineno, text, certain, hint, node.col_offset + 1, self._file)
        self.faults.append(fault)


def _parts(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    return (part for node in nodes for part in ast.walk(node))


def _is_cached(name: str) -> bool:
    home = Path(os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser())
    return (home / "hub" / f"models--{name.replace('/', '--')}").is_dir()


# -- files and parameters


def backend_fault(config: ConfigProto) -> tuple[str, str] | None:
    """Return the fault and fix for a missing package of the model's backend, or None."""
    module, package = _BACKEND_PACKAGES.get(config.backend, ("", ""))
    if not module or _find(module):
        return None
    text = f"the backend {config.backend} needs the package '{module}', which is not installed"
    return text, f"pip install {package}"


def file_faults(version: Path) -> Iterator[FileFault]:
    """Yield the faults of graphs in a version's folder that no backend can read."""
    for path in sorted(version.glob("*")):
        if path.suffix in _TENSOR_FILES and path.is_file():
            found = _content_fault(path)
            if found:
                yield FileFault(path, f"'{path}' {found[0]}", found[1], is_certain=True)


def _content_fault(path: Path) -> tuple[str, str] | None:
    """Return the fault of a file, judged by its first bytes and related files, and the fix."""
    with path.open("rb") as file:
        head = file.read(64)
    export = "export it again"
    if not head:
        return "is empty", "restore the file, or download it"
    if head.startswith(b"version https://git-lfs"):  # reported elsewhere
        return None
    if path.suffix == ".onnx":
        if head[0] not in (0x08, 0x12, 0x3A):  # a field of ModelProto
            return "is not an ONNX graph", export
        for name in sorted(_external(path)):
            if not (path.parent / name).exists():
                return f"needs its weights in '{name}'", "copy that file beside it"
    if path.suffix == ".pt":
        if not zipfile.is_zipfile(path):
            return "is not TorchScript", "save it by `torch.jit.save`"
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        if not any("/code/" in name or name.endswith("/constants.pkl") for name in names):
            return "has weights, but no code: it is not TorchScript", "save it by `torch.jit.save`"
    elif path.suffix == ".xml":
        weights = path.with_suffix(".bin")
        if not weights.exists():
            return f"needs its weights in '{weights.name}'", "copy that file beside it"
        if b"<" not in head:
            return "is not an OpenVINO graph", export
    return None


def _external(path: Path) -> set[str]:
    """Return the names of the files with an ONNX graph's external weights."""
    names: set[str] = set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for count, match in enumerate(_LOCATION.finditer(data)):
            size = match[1][0]
            name = data[match.end() : match.end() + size]
            names.add(name.decode(errors="replace"))
            if count > _MOST_LOCATIONS:
                break
    return {name for name in names if name.isprintable()}


def parameter_faults(config: ConfigProto) -> Iterator[tuple[FieldPath, str, str]]:
    """Yield the field, fault and fix of each parameter with a path that does not exist."""
    for name in sorted({*config.parameters} - {PARAMETER}):  # the environment has its own fault
        value = config.parameters[name].string_value
        path = Path(value)
        if _ABSOLUTE.match(value) and not (path.exists() or path.parent.is_dir()):
            field = ("parameters", name, "value", "string_value")
            text = f"parameter '{name}': '{value}' does not exist on this machine"
            yield field, text, "change the path, or start with `try --map`"


def free_bytes() -> float:
    """Return the machine's free memory in bytes; infinity if /proc/meminfo does not state it."""
    try:
        known = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(known["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return float("inf")


def memory_fault(files: Iterable[Path], instances: int) -> str:
    """Return a fault if the graphs are larger than the machine's free memory, else ""."""
    sizes = [file.stat().st_size for file in files if file.suffix in _TENSOR_FILES]
    need, free = sum(sizes) * max(1, instances), free_bytes()
    if need <= free:
        return ""
    return (
        f"{instances} instance(s) need {need >> 20} MiB for weights; {int(free) >> 20} MiB are free"
    )


def stub_fault(target: str) -> str:
    """Return a fault if the module of a stub's MODULE:FUNCTION is missing, else ""."""
    module = target.partition(":")[0]
    if Path(*module.split(".")).with_suffix(".py").is_file() or _find(module) is not False:
        return ""
    return f"--stub-model: no module '{module}' in {Path.cwd()} or in the installed packages"
