"""A page in headless chromium, and everything that it complains of or requests."""

import os
import shutil
from contextlib import contextmanager

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def browser():
    """Start chromium; skip the test, by name, where there is none."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: `apt-get install chromium`")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    options = ["--no-sandbox"] if os.getuid() == 0 else []  # chromium's sandbox does not start as root
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield chromium
        chromium.close()


class Opened:
    """A file, opened from disk."""

    def __init__(self, chromium, file, width=1400, height=900):
        self.complaints, self.requests = [], []
        self.page = chromium.new_page(viewport={"width": width, "height": height})
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def point(self, chart, x, y):
        """Point the mouse at a place of a chart, in data coordinates; return the text of the pop-up."""
        place = self.page.evaluate(
            """([selector, x, y]) => {
                const chart = document.querySelector(selector), { xaxis, yaxis, _size } = chart._fullLayout;
                chart.scrollIntoView({ block: "center", behavior: "instant" });
                const box = chart.getBoundingClientRect();
                return [box.left + _size.l + xaxis.l2p(x), box.top + _size.t + yaxis.l2p(y)];
            }""",
            [chart, x, y],
        )
        self.page.mouse.move(place[0] - 3, place[1] - 3)
        self.page.mouse.move(*place)
        popup = self.page.locator(f"{chart} .hoverlayer .hovertext")
        popup.first.wait_for()
        return popup.first.text_content()

    def drawn(self, chart):
        """Return the names of the lines that a chart shows."""
        names = "(selector) => [...new Set(document.querySelector(selector).data.map((trace) => trace.name))]"
        return self.page.evaluate(names, chart)

    def is_visible(self, selector):
        return self.page.locator(selector).first.is_visible()
