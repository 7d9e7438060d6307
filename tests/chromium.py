"""A real browser for tests: headless Chromium over its DevTools protocol, as small as it can be.

Use `browser()` as a context manager; a test is skipped where Chromium is missing, and fails there
if CI is set.
"""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect
from websockets.sync.connection import Connection

_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
    "--disable-component-update",
    "--disable-default-apps",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
_KEYS = {" ": "Space", "/": "Slash"}
_SECONDS = 120


class Page:
    """One tab. errors: errors and warnings of the console, and uncaught exceptions. requests:
    addresses asked for over a network."""

    def __init__(self, socket: Connection) -> None:
        self._socket, self._number, self._session = socket, 0, ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")
        self._send("Performance.enable", timeDomain="threadTicks")

    def open(self, url: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Loads a page in a window of this size; below 820 pixels as a phone."""
        self._send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 820,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._send("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self._send("Page.navigate", url=url)
        end = time.monotonic() + _SECONDS
        while not self._loaded and time.monotonic() < end:
            self._receive()
        assert self._loaded, f"{url} did not load"

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        result = self._send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + _SECONDS
        while not self.run(script):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)

    def wait_for_words(self, *words: str) -> str:
        """The page's text, once all the words are on it."""
        end = time.monotonic() + _SECONDS
        while missing := [word for word in words if word not in self.text()]:
            assert time.monotonic() < end, f"{missing} not on the page:\n{self.text()}"
            time.sleep(0.05)
        return self.text()

    def text(self) -> str:
        return str(self.run("document.body ? document.body.innerText : ''"))

    def click(self, label: str) -> None:
        """Presses the mouse on the element, tab or button or whatever it is made of, that shows
        exactly this label."""
        found = (
            "[...document.querySelectorAll('body *')].filter(one => one.innerText?.trim() "
            f"=== {json.dumps(label)}).at(-1)"
        )
        self.wait_for(f"{found} !== undefined")
        script = f"""(() => {{
            const one = {found};
            one.scrollIntoView({{block: 'center'}});
            const box = one.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
        x, y = self.run(script)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._send(
                "Input.dispatchMouseEvent",
                type=kind,
                x=x,
                y=y,
                button="none" if kind == "mouseMoved" else "left",
                clickCount=1,
            )

    def painted(self, red: int, green: int, blue: int) -> int:
        """How many pixels of the page as it is seen are of about this colour: what a canvas shows
        is no text that could be read."""
        picture = (
            f"data:image/png;base64,{self._send('Page.captureScreenshot', format='png')['data']}"
        )
        return int(
            self.run(f"""(async () => {{
            const image = await createImageBitmap(await (await fetch("{picture}")).blob());
            const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
            context.drawImage(image, 0, 0);
            const pixels = context.getImageData(0, 0, image.width, image.height).data;
            let count = 0;
            const distance = (i, value) => Math.abs(pixels[i] - value);
            for (let i = 0; i < pixels.length; i += 4)
                if (distance(i, {red}) + distance(i + 1, {green}) + distance(i + 2, {blue}) < 40)
                    count += 1;
            return count;
        }})()""")
        )

    def seconds_of(self, script: str) -> float:
        """Processor time that the page's main thread spends on a script and on drawing what it
        changed, whatever else the machine does."""
        before = self._busy()
        self.run(
            f"{script}; document.body.offsetHeight; new Promise((done) => "
            "requestAnimationFrame(() => setTimeout(done)))"
        )
        return self._busy() - before

    def _busy(self) -> float:
        metrics = self._send("Performance.getMetrics")["metrics"]
        return float(
            next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")
        )

    def press(self, *keys: str) -> None:
        """Presses keys by their names: "ArrowRight", " ", "a"."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
            for kind in ("keyDown", "keyUp"):
                more = text if kind == "keyDown" else {}
                self._send(
                    "Input.dispatchKeyEvent", type=kind, key=key, code=_KEYS.get(key, key), **more
                )

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """A PNG of the window, or of the whole page."""
        options: dict[str, Any] = {}
        if whole:
            size = self._send("Page.getLayoutMetrics")["cssContentSize"]
            options = {
                "captureBeyondViewport": True,
                "clip": {
                    "x": 0,
                    "y": 0,
                    "width": size["width"],
                    "height": size["height"],
                    "scale": 1,
                },
            }
        path.write_bytes(base64.b64decode(self._send("Page.captureScreenshot", **options)["data"]))

    def pdf(self, path: Path) -> None:
        path.write_bytes(
            base64.b64decode(self._send("Page.printToPDF", printBackground=True)["data"])
        )

    def _send(self, method: str, **params: Any) -> Any:
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        self._socket.send(
            json.dumps({"id": self._number, "method": method, "params": params, **session})
        )
        while True:
            message = self._receive()
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv(timeout=_SECONDS))
        params, method = message.get("params", {}), message.get("method")
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
            ("file:", "data:", "blob:", "about:")
        ):
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.errors.append(f"{params['type']}: {params['args']}")
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(
                f"{params['entry']['level']}: {params['entry']['text']} "
                f"{params['entry'].get('url', '')}"
            )
        return message


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A page of a fresh Chromium whose profile lies in `folder`."""
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        assert not os.environ.get("CI"), "CI must have chromium"
        pytest.skip("chromium is not installed")
    command = [chromium, *_ARGUMENTS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    port = folder / "profile" / "DevToolsActivePort"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + _SECONDS
        while not (port.is_file() and port.read_text().count("\n")):
            assert process.poll() is None, "chromium did not start"
            assert time.monotonic() < end, "chromium did not open its port"
            time.sleep(0.05)
        number, address = port.read_text().splitlines()[:2]
        with connect(
            f"ws://127.0.0.1:{number}{address}", max_size=None, proxy=None, open_timeout=_SECONDS
        ) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait()
