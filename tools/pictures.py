"""Make the pictures in the pages from real runs of the programs.

    python -m tools.pictures session      docs/images/session.svg
    python -m tools.pictures              all of them

Needs the models and tritonserver (`make models oracle`), Debian's chromium, and the ports 8000 to
8003, 8010 to 8012 and 8020 to 8022; `diagram` needs npm.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

from support.browser import Page, open_browser  # noqa: E402
from support.waiting import until  # noqa: E402

from tools import recording  # noqa: E402
from tools.site import DIAGRAM, diagram_name  # noqa: E402

IMAGES = ROOT / "docs" / "images"
_MERMAID = "11.17.2"
_SEARCHED = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}


def session(folder: Path) -> None:
    """Record a server, a request, a breakpoint, a check and a comparison of two servers."""
    examples = ROOT / "examples"
    shutil.copytree(examples / "test_your_model" / "model_repository", folder / "models")
    config = folder / "models" / "word_count" / "config.pbtxt"
    config.write_text(config.read_text().replace("microseconds: 100000", "microseconds: 100"))
    shutil.copytree(folder / "models", folder / "changed")
    shutil.copytree(examples / "faulty_models", folder / "faulty_models")
    model = folder / "changed" / "word_count" / "1" / "model.py"
    model.write_text(model.read_text().replace(".split()", ".replace(b'x', b' ').split()"))
    # Not shown: the other servers of the comparison, and its requests. Each server has a terminal,
    # because Linux divides the processors among sessions.
    changed, copy = (recording.Terminal("", 24, folder, _SEARCHED) for _ in range(2))
    server = recording.Terminal("Terminal 1", 12, folder, _SEARCHED)
    client = recording.Terminal("Terminal 2", 16, folder, _SEARCHED)
    try:
        changed.type(
            "triton-replay generate --output texts.trc --model word_count "
            "--input TEXT:BYTES:2,1 --rate 40 --seconds 5"
        )
        for terminal, repository, first in ((copy, "models", 8020), (changed, "changed", 8010)):
            ports = f"--http-port {first} --grpc-port {first + 1} --metrics-port {first + 2}"
            terminal.type(
                f"reference-server --model-repository {repository} {ports}", until="Pages: "
            )
        server.type(
            "reference-server --model-repository models --model-control-mode poll "
            "--repository-poll-secs 1",
            until="Pages: ",
        )
        server.wait("\n")
        request = (
            """curl -s localhost:8000/v2/models/word_count/generate -d '{"TEXT": "two words"}'"""
        )
        client.type(f"{request}; echo")
        client.type("sed -i 's/    counts = /    breakpoint()\\n&/' models/word_count/1/model.py")
        server.wait("successfully loaded 'word_count'\"\r\n")
        client.type(f"{request}; echo", until="")
        server.wait("(Pdb) ")
        for command in ("p texts", "n", "p counts"):
            server.type(command, until="(Pdb) ")
        server.type("c", until="")
        client.wait("$ ")
        client.type("sed -i '/breakpoint/d' models/word_count/1/model.py")
        server.wait("successfully loaded 'word_count'\"\r\n")
        client.type("reference-server check faulty_models")
        client.type(
            "triton-replay ab texts.trc --a localhost:8000 --a2 localhost:8020 --b localhost:8010"
        )
    finally:
        for terminal in (client, server, changed, copy):
            terminal.close()
    title = "A session: a server, a request, a breakpoint in model.py, a check, a comparison"
    (IMAGES / "session.svg").write_text(recording.draw([server, client], title), encoding="utf-8")


@contextlib.contextmanager
def _running(*command: str, ready: str) -> Iterator[None]:
    """Run a command until the address `ready` answers, and during the context."""
    process = subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: process.poll() is not None or _answers(ready), ready)
        assert process.poll() is None, f"{command}: ended with {process.returncode}"
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"http://{address}", timeout=5).close()
    except OSError:
        return False
    return True


def _ask(model: str, values: str, *, seconds: float) -> None:
    """Send five requests per second over the generate extension."""
    for _ in range(int(5 * seconds)):
        url = f"http://localhost:8000/v2/models/{model}/generate"
        urllib.request.urlopen(url, values.encode(), timeout=30).close()
        time.sleep(0.2)


def _keep(page: Page, name: str) -> None:
    """Write a screenshot of the page with 128 colours, which needs a third of the size."""
    page.screenshot(IMAGES / name)
    with Image.open(IMAGES / name) as picture:
        # MAXCOVERAGE keeps colours that only few pixels have, such as those of a legend.
        few = picture.convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE)
    few.save(IMAGES / name, optimize=True)


_OPEN = "[...document.querySelectorAll('tbody button')].find((b) => b.textContent === {!r}).click()"


def pages(folder: Path) -> None:
    """Show the pages of `make serve`, after the request of README and an image of a digit."""
    spec = importlib.util.spec_from_file_location("digits", ROOT / "examples/classify_image.py")
    assert spec is not None
    assert spec.loader is not None
    digits = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(digits)
    shade = (255 * digits.draw(7, (32, 24))).astype(np.uint8)
    Image.fromarray(shade.reshape(32, 24)).save(folder / "seven.png")
    serve = (
        "tools/serve.py",
        "--model-repository=model_repository",
        f"--log-file={folder / 'log'}",
    )
    with _running(*serve, ready="localhost:8000/v2/health/ready"), open_browser(folder) as page:
        page.resize(1100, 880)
        page.open("http://localhost:8002/")
        page.wait_for("models.tBodies.length")
        _ask("text_pipeline", '{"text": "Where is my parcel?"}', seconds=70)
        page.evaluate(_OPEN.format("text_pipeline"))
        page.evaluate("document.activeElement.blur()")
        _keep(page, "live_page.png")
        page.resize(760, 1140)
        page.open("http://localhost:8000/try#ge_classifier")
        page.wait_for("fields.length")
        page.choose_file("input[type=file]", folder / "seven.png")
        page.evaluate("by('send').click()")
        page.wait_for("by('answer').querySelector('table') && by('answer').ariaBusy === 'false'")
        _keep(page, "try_page.png")


def triton(folder: Path) -> None:
    """Show the page of a real tritonserver."""
    models = folder / "models"
    shutil.copytree(ROOT / "examples" / "models", models)
    start = ("tools/oracle.py", "serve", "--model-repository", str(models))
    page_of = ("-m", "reference_server", "page")
    with (
        _running(*start, ready="localhost:8000/v2/health/ready"),
        _running(*page_of, ready="localhost:8003/"),
        open_browser(folder) as page,
    ):
        page.resize(1100, 620)
        page.open("http://127.0.0.1:8003/")
        page.wait_for("models.tBodies.length")
        _ask("distance", '{"POINT": [3, 4]}', seconds=70)
        page.evaluate(_OPEN.format("distance"))
        page.evaluate("document.activeElement.blur()")
        _keep(page, "triton_page.png")


#: Makes the page of a comparison with a model that confuses the rows of a batch.
_FAULT = """
mkdir -p build/models
cp -r model_repository/ge_classifier build/models
printf 'batch,side,count\n1,20,10\n2,20,20\n3,12,10\n' > build/sizes.csv
.venv/bin/triton-replay generate --output build/images.trc --model ge_classifier \\
    --input image:FP32:batch,1,side,side --sizes build/sizes.csv --rate 20 --seconds 8
for name in reference faulty; do
    .venv/bin/reference-server --model-repository build/models > build/$name.log 2>&1 &
    until curl -sf localhost:8000/v2/health/ready; do sleep 1; done
    .venv/bin/triton-replay replay build/images.trc --server localhost:8000 --output build/$name.trc
    kill $!
    wait $!
    sed -i '1,/^import/s/^import/import numpy as np\\nimport/' build/models/ge_classifier/1/model.py
    cat >> build/models/ge_classifier/1/model.py <<'END'
    def execute(self, requests):
        rows = [each.output_tensors()[0].as_numpy() for each in self._graph.execute(requests)]
        mixed = [np.concatenate([each[:1], each[1:, ::-1]]) for each in rows]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("logits", each)]) for each in mixed]
END
done
.venv/bin/triton-replay compare build/reference.trc build/faulty.trc --html build/fault.html
"""


def replay(folder: Path) -> None:
    """Run the examples of docs/replay.md, print their output, and show their pages."""
    examples = re.findall(r"^```\n(.*?)^```$", (ROOT / "docs/replay.md").read_text(), re.M | re.S)
    for script in (_FAULT, *(each for each in examples if "--html build/" in each)):
        (name,) = re.findall(r"--html build/(\w+)\.html", script)
        own = folder / name
        own.mkdir()
        for needed in (".venv", "model_repository"):
            (own / needed).symlink_to(ROOT / needed)
        subprocess.run(["bash", "-c", script], cwd=own, check=False)  # 1: responses differ
        with open_browser(own) as page:
            page.resize(860, 600)
            page.open((own / "build" / f"{name}.html").as_uri())
            page.resize(860, page.evaluate("document.documentElement.scrollHeight"))
            _keep(page, f"replay_{name}.png")


def diagram(folder: Path) -> None:
    """Draw the diagrams of the pages, for a site that loads nothing from other hosts."""
    npm = ["npm", "pack", "--silent", f"mermaid@{_MERMAID}", "--pack-destination", str(folder)]
    subprocess.run(npm, check=True, stdout=subprocess.DEVNULL)
    with tarfile.open(folder / f"mermaid-{_MERMAID}.tgz") as package:
        script = package.extractfile("package/dist/mermaid.min.js")
        assert script is not None
        library = script.read().decode()
    with open_browser(folder) as page:
        page.open("about:blank")
        page.evaluate(f"{library};0")
        page.evaluate(
            "mermaid.initialize({startOnLoad: false, deterministicIds: true, htmlLabels: false,"
            " flowchart: {htmlLabels: false}, fontFamily: 'system-ui, sans-serif'})"
        )
        for source in sorted((ROOT / "docs").glob("*.md")):
            for text in DIAGRAM.findall(source.read_text(encoding="utf-8")):
                drawn = page.evaluate(f"mermaid.render('drawn', {text!r}).then(({{svg}}) => svg)")
                drawn = drawn.replace(' style="', ' style="background: #fff; ', 1)
                (IMAGES / diagram_name(text)).write_text(drawn, encoding="utf-8")


PICTURES: Mapping[str, Callable[[Path], None]] = {
    "session": session,
    "pages": pages,
    "triton": triton,
    "replay": replay,
    "diagram": diagram,
}


def main(names: list[str]) -> int:
    """Make the named pictures, or all."""
    for name in names or PICTURES:
        with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
            PICTURES[name](Path(folder))
        print(name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
