"""A headless Chromium, driven by its DevTools protocol over two pipes, without another package."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

#: The file descriptors of the browser for its commands and for its answers.
_COMMANDS, _ANSWERS = 3, 4
_FREE = 10


class Page:
    """An open page."""

    def __init__(self, send: int, receive: int) -> None:
        self._send = os.fdopen(send, "wb", buffering=0)
        self._receive = os.fdopen(receive, "rb")
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.complaints: list[str] = []

    def attach(self) -> None:
        """Open an empty page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """Execute a command in the browser, and return its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": given}
        if self._session:
            message["sessionId"] = self._session
        self._send.write(json.dumps(message).encode() + b"\0")
        while True:
            told = self._read()
            if told.get("id") == number:
                assert "error" not in told, told["error"]
                return told["result"]
            self._note(told)

    def _read(self) -> dict[str, Any]:
        read = bytearray()
        while (byte := self._receive.read(1)) != b"\0":
            assert byte, "the browser has ended"
            read += byte
        return json.loads(read)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(event["params"]["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded":
            self.complaints.append(event["params"]["entry"]["text"])

    def open(self, url: str) -> None:
        """Open a URL, and wait until the page is loaded."""
        self.call("Page.navigate", url=url)
        self.wait_for(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression on the page; await it if it is a promise."""
        told = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until an expression is true."""
        until(lambda: self.evaluate(f"Boolean({script})"), script)

    @property
    def text(self) -> str:
        """Return the visible text of the page."""
        return str(self.evaluate("document.body.innerText"))

    def press(self, key: str) -> None:
        """Press and release a key: Tab, Enter or a character."""
        codes = {"Tab": 9, "Enter": 13}
        text = {"Enter": "\r", "Tab": ""}.get(key, key)
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                windowsVirtualKeyCode=codes.get(key, ord(key[-1].upper())),
                text=text if kind == "keyDown" else "",
            )

    def choose_file(self, selector: str, file: Path) -> None:
        """Choose a file in a file input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(file)], nodeId=node)

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """Set the size of the window, or of an emulated phone."""
        scale = 2 if phone else 1
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=phone,
        )

    def set_media(self, feature: str, value: str) -> None:
        """Set a media feature, such as `prefers-color-scheme`."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": feature, "value": value}])

    def screenshot(self, file: Path) -> None:
        """Write the visible part of the page to a PNG file."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextlib.contextmanager
def open_browser(folder: Path) -> Iterator[Page]:
    """Run a browser with a profile in `folder`."""
    assert CHROMIUM is not None
    their_end, send = os.pipe()
    receive, their_other_end = os.pipe()
    # Duplicates whose numbers differ from the browser's descriptor numbers.
    theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, _FREE) for end in (their_end, their_other_end)]

    def place() -> None:
        os.dup2(theirs[0], _COMMANDS)
        os.dup2(theirs[1], _ANSWERS)

    process = subprocess.Popen(
        [
            *(CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}"),
            "--host-resolver-rules=MAP *.example 127.0.0.1",  # as after DNS rebinding
        ],
        pass_fds=(_COMMANDS, _ANSWERS),
        preexec_fn=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in (*theirs, their_end, their_other_end):
        os.close(end)
    page = Page(send, receive)
    try:
        page.attach()
        yield page
    finally:
        page._session = None
        try:
            # A browser that is terminated leaves a temporary folder.
            page.call("Browser.close")
            process.wait(30)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        page._send.close()
        page._receive.close()
