"""Headless Chromium by the WebDriver protocol over plain HTTP: no library, only chromium and chromedriver."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path  # noqa: TC003
from typing import Any, Self
from urllib.request import Request, urlopen

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def missing() -> str:
    """What is not installed, or ""."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    found = {"chromium": chromium, "chromedriver": shutil.which("chromedriver")}
    lacking = [name for name, path in found.items() if not path]
    return " and ".join(lacking)


class Browser:
    """One page in one window."""

    def __enter__(self) -> Self:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._root = f"http://127.0.0.1:{self._port()}"
        binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        options = {
            "binary": binary,
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     f"--user-data-dir={self._profile.name}"],
        }  # fmt: skip
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._root += f"/session/{session['sessionId']}"
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._send("DELETE", "", None)
        finally:
            self._driver.terminate()
            self._driver.wait()
            assert self._driver.stdout is not None
            self._driver.stdout.close()
            self._profile.cleanup()

    def _port(self) -> int:
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                return int(found[1])
        raise RuntimeError("chromedriver did not start")

    def _send(self, verb: str, path: str, body: Any) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self._root + path, data, {"Content-Type": "application/json"}, method=verb)
        with urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def cdp(self, command: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._send("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, path: Path, width: int, theme: str = "light") -> None:
        """Show a file in a viewport of this width."""
        phone = width < 600
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=phone)
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self._send("POST", "/url", {"url": path.as_uri()})

    def run(self, script: str) -> Any:
        """What a function body returns in the page."""
        return self._send("POST", "/execute/sync", {"script": script, "args": []})

    def press(self, key: str) -> None:
        """Press and release a key of the WebDriver alphabet, for example Tab as U+E004."""
        keys = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._send("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": keys}]})

    def console(self) -> list[str]:
        """What was said on the console since the last call, requests that failed included."""
        return [entry["message"] for entry in self._send("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, path: Path) -> None:
        """The whole page."""
        shot = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
