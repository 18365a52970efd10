"""The page in a real browser: names highlight their lines, with and without a script; nothing is refused or fetched."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from bundles import large, write_bundle

from gapd.gap_model.manifest import Manifest
from gaptrain.report.page import write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no browser is installed (Debian package chromium)")
# A page around the report, which acts as its reader does and writes down what is then seen.
AROUND = """<!DOCTYPE html><body><pre id="seen">nothing</pre><iframe src="PAGE" width="1200" height="900"></iframe>
<script>
document.querySelector("iframe").addEventListener("load", function () {
  const inside = this.contentDocument;
  const all = (selector) => Array.from(inside.querySelectorAll(selector));
  const opacity = (element) => Number(inside.defaultView.getComputedStyle(element).opacity);
  const seen = { title: inside.title, errors: [] };
  try { ACT } catch (error) { seen.errors.push(String(error)); }
  document.getElementById("seen").textContent = JSON.stringify(seen);
});
</script></body>"""
ACT = """
  const graph = all("svg.graph")[0];
  const fire = (element, kind) => element.dispatchEvent(new Event(kind, { bubbles: kind === "click" }));
  const bright = () => Array.from(graph.querySelectorAll("path")).filter((line) => opacity(line) === 1)
    .map((line) => line.querySelector("title").textContent.split(":")[0]).sort();
  const node = (name) => all("svg.graph .node").find((n) => n.querySelector("title").textContent.startsWith(name));
  seen.before = bright().length;
  fire(node("LEFT"), "pointerenter"); seen.left = bright(); seen.said = all(".said")[0].textContent;
  fire(node("LEFT"), "pointerleave"); seen.after = bright().length;
  fire(node("RIGHT"), "click"); fire(node("RIGHT"), "pointerleave"); seen.right = bright();
  fire(node("RIGHT"), "click"); seen.again = bright().length;
  seen.labels = all("svg.graph text").filter((t) => {
    const svg = t.closest("svg"), box = t.getBBox();
    return svg.getBoundingClientRect().width > 0 &&
      (box.x < 0 || box.x + box.width > svg.viewBox.baseVal.width || box.y + box.height > svg.viewBox.baseVal.height);
  }).map((t) => t.textContent);
  seen.wide = inside.documentElement.scrollWidth > inside.documentElement.clientWidth;
  seen.background = inside.defaultView.getComputedStyle(inside.body).backgroundColor;
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """The address of tmp_path on this machine, and the paths that were asked for."""
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def browse(address: str, profile: Path, *options: str) -> tuple[str, str]:
    """The page as the browser has it after its scripts, and what it complains about."""
    assert BROWSER
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
         "--enable-logging=stderr", "--virtual-time-budget=5000", *options, "--dump-dom", address],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def seen_by(page: str, left: str, right: str, served: str, folder: Path, *options: str) -> dict[str, object]:
    """What a reader sees who points at one name and clicks at another."""
    act = ACT.replace("LEFT", left).replace("RIGHT", right)
    (folder / "around.html").write_text(AROUND.replace("PAGE", page).replace("ACT", act))
    dom, complaints = browse(f"{served}/around.html", folder / "profile", *options)
    assert complaints == ""
    found = re.search(r'<pre id="seen">(.*?)</pre>', dom, flags=re.DOTALL)
    assert found
    seen: dict[str, object] = json.loads(found[1].replace("&gt;", ">").replace("&amp;", "&"))
    assert seen["errors"] == []
    return seen


@needs_browser
def test_names_highlight_their_lines(small: Manifest, served: tuple[str, list[str]], tmp_path: Path) -> None:
    write_report(write_bundle(tmp_path / "bundle", small), tmp_path / "report.html")
    names, channels = [p.name for p in small.parameters], [c.name for c in small.channels]
    seen = seen_by("report.html", f"{names[1]}:", f"{channels[0]}:", served[0], tmp_path)
    everything = len(names) * len(channels)
    assert (seen["before"], seen["after"], seen["again"]) == (everything, everything, everything)
    assert seen["left"] == sorted(f"{names[1]} → {channel}" for channel in channels)
    assert str(seen["said"]).startswith(f"{names[1]}: moves 3 channels, most ")
    assert seen["right"] == sorted(f"{name} → {channels[0]}" for name in names)
    assert seen["labels"] == [], "labels that are cut off"
    assert seen["wide"] is False
    assert {path for path in served[1] if path != "/favicon.ico"} == {"/around.html", "/report.html"}


@needs_browser
def test_a_large_page_and_a_dark_one(served: tuple[str, list[str]], tmp_path: Path) -> None:
    write_report(write_bundle(tmp_path / "bundle", large()), tmp_path / "report.html")
    names = ("report.html", "joint/*/damping:", "*/velocity:", served[0], tmp_path)
    light = seen_by(*names)
    dark = seen_by(*names, "--blink-settings=preferredColorScheme=0")
    assert light["left"] == ["joint/*/damping → */position", "joint/*/damping → */velocity"]
    assert len(list(light["right"])) == 7
    assert light["labels"] == []
    assert light["wide"] is False
    assert (light["background"], dark["background"]) == ("rgb(252, 252, 251)", "rgb(20, 23, 27)")
