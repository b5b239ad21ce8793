# SPDX-License-Identifier: LGPL-2.1-only
"""No page of the documents is wider than the screen, of a telephone or a desk: headless Chromium measures each.

One Chromium shows all pages, one after the other, in a frame of each width; a server on loopback gives it the pages.
"""

import html
import json
import mimetypes
import os
import re
import shutil
import subprocess
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from urllib.parse import unquote, urlsplit

import pytest

from kit.rpm_tools import succeed

WIDTHS = (390, 1280)
#: as root, and on a network that leads nowhere
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
         "--window-size=1400,1000"]  # fmt: skip

#: how wide each page is in a frame of each width, and how many letters it shows
MEASURE = """<!DOCTYPE html><title>measure</title><pre id="found"></pre><script>
const names = NAMES, widths = WIDTHS, found = [];
async function measure(name, width) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:900px;border:0`;
  const loaded = new Promise(done => frame.onload = done);
  frame.src = name;
  document.body.append(frame);
  await loaded;
  const page = frame.contentDocument.documentElement;
  found.push({name, width, wide: page.scrollWidth, shown: page.innerText.length});
  frame.remove();
}
(async () => {
  for (const width of widths) for (const name of names) await measure(name, width);
  document.getElementById("found").textContent = JSON.stringify(found);
  document.title = "measured";
})();
</script>"""


@pytest.fixture(scope="module")
def chromium():
    program = shutil.which("chromium")
    if program is None:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up("there is no Chromium; tools/need-packages.sh installs it")
    return program


@contextmanager
def serving(directory):
    """The address of a server of the files of a directory."""

    class Files(BaseHTTPRequestHandler):
        def do_GET(self):
            path = directory / unquote(urlsplit(self.path).path).lstrip("/")
            if not path.is_file():
                return self.send_error(404)
            self.send_response(200)
            self.send_header("Content-Type", mimetypes.guess_type(path.name)[0] or "application/octet-stream")
            self.end_headers()
            return self.wfile.write(path.read_bytes())

        def log_message(self, *_):
            """Nothing: what is asked for is known."""

    class Server(ThreadingMixIn, HTTPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Files) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def measured(chromium, directory, profile, names, widths=WIDTHS):
    """Of each page of the directory at each width: how wide it is, and how many letters it shows."""
    page = MEASURE.replace("NAMES", json.dumps(names)).replace("WIDTHS", json.dumps(widths))
    (directory / "measure.html").write_text(page, encoding="utf-8")
    with serving(directory) as address:
        argv = [chromium, *QUIET, f"--user-data-dir={profile}", "--virtual-time-budget=600000", "--dump-dom"]
        done = subprocess.run(
            [*argv, address + "/measure.html"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, check=True
        )
    (text,) = re.findall(r'<pre id="found">(.*?)</pre>', done.stdout.decode(), re.DOTALL)
    return json.loads(html.unescape(text))


def test_no_page_is_wider_than_the_screen(chromium, release, tmp_path):
    (pages,) = release.glob("*-html.tar.gz")
    succeed("tar", "-xzf", pages, "-C", tmp_path, "--one-top-level=html", "--strip-components=1")
    built = tmp_path / "html"
    names = sorted(str(path.relative_to(built)) for path in built.rglob("*.html"))

    found = measured(chromium, built, tmp_path / "profile", names)

    assert len(names) > 30 and len(found) == len(names) * len(WIDTHS)
    assert [page for page in found if page["wide"] > page["width"]] == []
    empty = {page["name"] for page in found if page["shown"] < 200}
    assert empty <= {"genindex.html", "search.html"}


def test_a_page_that_is_wider_is_found(chromium, tmp_path):
    directory = tmp_path / "html"
    directory.mkdir()
    (directory / "wide.html").write_text("<!DOCTYPE html><div style='width:700px'>wide</div>", encoding="utf-8")
    found = measured(chromium, directory, tmp_path / "profile", ["wide.html"])
    assert [page["wide"] > page["width"] for page in found] == [True, False]
