"""Headless Chromium through its DevTools protocol: open a page, wait for words on it, take a picture, hear its errors."""

import base64
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import connect
from websockets.sync.connection import Connection

from tests.flows.served import wait_for

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Nothing of these concerns the page: no sandbox because tests may run as root, the rest so that it asks nobody for anything.
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
         "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-port=0",
         "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]  # fmt: skip


class Page:
    """One tab. `errors` holds what its console reported as an error, exceptions included."""

    def __init__(self, socket: Connection) -> None:
        self.errors: list[str] = []
        self._socket, self._number, self._session = socket, 0, ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call("Emulation.setDeviceMetricsOverride", width=1500, height=1100, deviceScaleFactor=1, mobile=False)

    def open(self, url: str) -> None:
        self._call("Page.navigate", url=url)

    def text(self) -> str:
        return str(self.run("document.body ? document.body.innerText : ''"))

    def click(self, label: str) -> None:
        """Presses the mouse on the element, tab or button or whatever it is made of, that shows exactly this label."""
        script = f"""(() => {{
            const one = [...document.querySelectorAll('body *')].filter(one => one.innerText?.trim() === {json.dumps(label)}).at(-1);
            if (!one) return null;
            one.scrollIntoView({{block: 'center'}});
            const box = one.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
        x, y = wait_for(lambda: self.run(script), f"something labelled {label}", 60)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="none" if kind == "mouseMoved" else "left", clickCount=1)

    def run(self, script: str) -> Any:
        """The value of a script, awaited if it is a promise."""
        return self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)["result"].get("value")

    def wait_for(self, *words: str, seconds: float = 120) -> str:
        """The page's text, once all the words are on it."""
        try:
            wait_for(lambda: all(word in self.text() for word in words), f"{words} on the page", seconds)
        except AssertionError:
            raise AssertionError(f"{[word for word in words if word not in self.text()]} not on the page:\n{self.text()}") from None
        return self.text()

    def picture(self, path: Path) -> None:
        path.write_bytes(self._png())

    def painted(self, red: int, green: int, blue: int) -> int:
        """How many pixels of the page as it is seen are of about this colour: what a canvas shows is no text that could be read."""
        picture = f"data:image/png;base64,{base64.b64encode(self._png()).decode()}"
        return int(
            self.run(f"""(async () => {{
            const image = await createImageBitmap(await (await fetch("{picture}")).blob());
            const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
            context.drawImage(image, 0, 0);
            const pixels = context.getImageData(0, 0, image.width, image.height).data;
            let count = 0;
            for (let i = 0; i < pixels.length; i += 4)
                count += Math.abs(pixels[i] - {red}) + Math.abs(pixels[i + 1] - {green}) + Math.abs(pixels[i + 2] - {blue}) < 40;
            return count;
        }})()""")
        )

    def _png(self) -> bytes:
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def _call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._socket.send(json.dumps({**message, "sessionId": self._session} if self._session else message))
        while True:
            answer = json.loads(self._socket.recv(timeout=120))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._hear(answer.get("method"), answer.get("params", {}))

    def _hear(self, method: str | None, event: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(event["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and event["type"] == "error":
            self.errors.append(" ".join(str(part.get("value", part.get("description"))) for part in event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.errors.append(f"{event['entry']['text']} {event['entry'].get('url', '')}")


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A fresh Chromium with one tab, ended at the end."""
    assert BINARY is not None
    process = subprocess.Popen([BINARY, *FLAGS, f"--user-data-dir={folder}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        place = folder / "DevToolsActivePort"
        port, path = wait_for(lambda: lines if place.exists() and len(lines := place.read_text().split()) == 2 else None, "Chromium", 120)
        with connect(f"ws://127.0.0.1:{port}{path}", max_size=None, open_timeout=120) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait(timeout=60)
