"""Looks at the site in a browser: at wide and narrow pages, and at what the search finds."""

import http.server
import json
import shutil
import subprocess
import threading
from functools import partial

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
# A page with a frame for each page and width; it sends what it finds.
CHECK = """<!doctype html><body><script>
const pages = %s, found = {};
function frame(address, width) {
  return new Promise(done => {
    const each = document.createElement("iframe");
    each.width = width; each.height = 900; each.src = address; each.style.border = 0;
    each.onload = () => done(each);
    document.body.append(each);
  });
}
async function results(inner) {
  for (let turn = 0; turn < 400; turn++) {
    const links = inner.querySelectorAll(".md-search-result__link");
    if (links.length) return [...links].map(link => link.href);
    await new Promise(done => setTimeout(done, 50));
  }
  return [];
}
(async () => {
  for (const page of pages) {
    const each = await frame(page, 1400), inner = each.contentDocument.documentElement;
    found[page] = {heading: inner.querySelector("h1")?.textContent || ""};
    for (const width of [1400, 400]) {
      each.width = width;
      found[page][width] = inner.scrollWidth;
    }
    each.remove();
  }
  found.search = {};
  for (const query of %s) {
    const each = await frame("index.html?q=" + encodeURIComponent(query), 1400);
    found.search[query] = await results(each.contentDocument);
    each.remove();
  }
  await fetch("found", {method: "POST", body: JSON.stringify(found)});
})();
</script></body>"""


SEARCHES = {
    "mpiprocs": ["how-to/troubleshoot.html", "reference/messages.html"],
    "add a rule": ["how-to/extend.html"],
    "add an attack": ["how-to/extend.html"],
    "own rule": ["how-to/extend.html"],
    "per-class accuracy": ["how-to/report.html#evaluate-a-model"],
    "confusion matrix": ["how-to/report.html#evaluate-a-model", "reference/command-line.html#hpcps-evaluate"],
}
"""What a search finds, and on which pages or sections, in any order."""
FIRST = 4
"""Among how many pages of the result it is."""


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site, and keeps what the browser sends."""

    def do_POST(self):
        self.server.found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        self.server.done.set()

    def log_message(self, *_):
        pass


def look(site, profile):
    """Return, by page, what a browser with an empty profile finds, and under `search` the links for each query."""
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if path.name != "404.html")
    check = site / "check.html"
    check.write_text(CHECK % (json.dumps(pages), json.dumps(list(SEARCHES))))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=site)) as server:
        server.done = threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        # With a port for debugging, it stays open until it is told to end.
        options += ["--remote-debugging-port=0", f"--user-data-dir={profile}"]
        address = f"http://127.0.0.1:{server.server_port}/check.html"
        with subprocess.Popen([BROWSER, *options, address], stderr=subprocess.PIPE, text=True) as browser:
            told = server.done.wait(200)
            browser.terminate()
            errors = browser.stderr.read()
        server.shutdown()
        check.unlink()
    assert told, errors[-2000:]
    return server.found
