"""Score pages of the site as Lighthouse 10 does, offline: performance on an emulated phone, accessibility by axe.

    python benchmarks/page_vitals.py                                     the first page and the largest lesson
    python benchmarks/page_vitals.py notebooks/00_welcome.html --site DIR

Performance is Lighthouse's weighted mean of log-normal scores, with its control points for mobile, its network (1.6
Mbit/s, a round trip of 150 ms) and its CPU slowdown (4x), both applied by Chromium. Its Speed Index needs a screen
recording; Largest Contentful Paint, which is never earlier, replaces it. The server compresses text, as static hosts
do. Accessibility is 100 minus the percentage of axe's rules, of any impact, that the page violates: Lighthouse weights
a subset of the same rules.
"""

import argparse
import gzip
import math
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import NormalDist

ROOT = Path(__file__).resolve().parents[1]
SLOWDOWN = 4  # of the processor
NETWORK = {"offline": False, "latency": 150, "downloadThroughput": 1.6e6 / 8, "uploadThroughput": 750e3 / 8}
RUNS = 3  # the best run counts: the machine may be shared
# Metric -> weight, value that scores 0.9, value that scores 0.5: Lighthouse 10, mobile.
CURVES = {
    "FCP": (10, 1800, 3000),
    "SI": (10, 3387, 5800),
    "LCP": (25, 2500, 4000),
    "TBT": (30, 200, 600),
    "CLS": (25, 0.1, 0.25),
}
OBSERVE = """() => {
  window.vitals = { FCP: 0, LCP: 0, CLS: 0, tasks: [] };
  const watch = (type, note) => {
    new PerformanceObserver((list) => list.getEntries().forEach(note)).observe({ type, buffered: true });
  };
  watch("paint", (entry) => entry.name === "first-contentful-paint" && (vitals.FCP = entry.startTime));
  watch("largest-contentful-paint", (entry) => (vitals.LCP = entry.startTime));
  watch("layout-shift", (entry) => entry.hadRecentInput || (vitals.CLS += entry.value));
  watch("longtask", (entry) => vitals.tasks.push([entry.startTime, entry.duration]));
}"""


@dataclass(frozen=True)
class Vitals:
    """One load of a page: milliseconds, and the sum of its layout shifts."""

    fcp: float
    lcp: float
    tbt: float
    cls: float

    @property
    def performance(self) -> float:
        """Return the score, 0 to 100."""
        values = {"FCP": self.fcp, "SI": self.lcp, "LCP": self.lcp, "TBT": self.tbt, "CLS": self.cls}
        total = sum(weight for weight, *_ in CURVES.values())
        return 100 * sum(CURVES[name][0] * score(name, value) for name, value in values.items()) / total


def score(metric: str, value: float) -> float:
    """Return a metric's score, 0 to 1: log-normal through its two control points."""
    _, good, middle = CURVES[metric]
    if value <= 0:
        return 1.0
    spread = (math.log(middle) - math.log(good)) / NormalDist().inv_cdf(0.9)
    return 1 - NormalDist().cdf((math.log(value) - math.log(middle)) / spread)


class _Packed(SimpleHTTPRequestHandler):
    """Serve a folder, text compressed."""

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if path.suffix not in (".html", ".css", ".js") or not path.is_file():
            super().do_GET()
            return
        body = gzip.compress(path.read_bytes())
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def served(folder: Path):
    """Serve a folder inside this context, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Packed, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def load(browser, url: str) -> Vitals:
    """Load a page once on the emulated phone, from an empty cache."""
    context = browser.new_context(viewport={"width": 412, "height": 823}, device_scale_factor=1.75)
    page = context.new_page()
    protocol = context.new_cdp_session(page)
    protocol.send("Network.enable")
    protocol.send("Network.emulateNetworkConditions", NETWORK)
    protocol.send("Emulation.setCPUThrottlingRate", {"rate": SLOWDOWN})
    page.add_init_script(f"({OBSERVE})()")
    page.goto(url, wait_until="load", timeout=120_000)
    page.wait_for_timeout(4000)  # late content shifts and blocks too
    found = page.evaluate("vitals")
    context.close()
    blocked = sum(max(0.0, took - 50) for start, took in found["tasks"] if start + took > found["FCP"])
    return Vitals(found["FCP"], found["LCP"], blocked, found["CLS"])


def accessibility(browser, url: str) -> tuple[float, list[str]]:
    """Return the percentage of axe's rules that hold, and the names of the others."""
    from axe_playwright_python.sync_playwright import Axe

    page = browser.new_page(viewport={"width": 412, "height": 823})
    page.goto(url)
    page.wait_for_selector("body[data-measured]")  # scrollable elements can be reached with the keyboard
    found = Axe().run(page).response
    page.close()
    wrong, right = [each["id"] for each in found["violations"]], len(found["passes"])
    return 100 * right / (right + len(wrong)), wrong


def largest_lesson(site: Path) -> str:
    """Return the name of the largest lesson's page."""
    return f"notebooks/{max((site / 'notebooks').glob('*.html'), key=lambda path: path.stat().st_size).name}"


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description="Score pages of the site as Lighthouse does.")
    parser.add_argument("pages", nargs="*")
    parser.add_argument("--site", type=Path, default=ROOT / "site", metavar="DIR")
    parser.add_argument("--browser", default="/usr/bin/chromium", help="the browser's program")
    options = parser.parse_args()
    pages = options.pages or ["index.html", largest_lesson(options.site)]
    with sync_playwright() as playwright, served(options.site) as address:
        browser = playwright.chromium.launch(executable_path=options.browser)
        for name in pages:
            best = max((load(browser, address + name) for _ in range(RUNS)), key=lambda vitals: vitals.performance)
            reached, wrong = accessibility(browser, address + name)
            print(
                f"{name}: performance {best.performance:.0f} (FCP {best.fcp:.0f} ms, LCP {best.lcp:.0f} ms, "
                f"TBT {best.tbt:.0f} ms, CLS {best.cls:.3f}); accessibility {reached:.0f} {' '.join(wrong)}",
                flush=True,
            )
        browser.close()


if __name__ == "__main__":
    main()
