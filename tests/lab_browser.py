"""JupyterLab as `make lab` starts it, and one of its pages in a real browser."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

ROOT = Path(__file__).resolve().parent.parent
FUSION = Path(sys.executable).parent / "fusion"


class LabServer:
    """A running `fusion lab`. `url`: the address it printed; `lines`: what it printed, up to there."""

    def __init__(self, *options: str, **environment: str):
        self.process = subprocess.Popen(
            [FUSION, "lab", *options],
            cwd="/",
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("http"):
                break
        else:
            raise AssertionError("fusion lab ended and printed no address:\n" + "\n".join(self.lines))
        self.url = self.lines[-1]
        self.host = f"http://{urlsplit(self.url).netloc}"
        self.port = urlsplit(self.url).port
        self.token = parse_qs(urlsplit(self.url).query)["token"][0]

    def address(self, notebook: str) -> str:
        """Of `notebook`, in a workspace where no other tab is open."""
        return f"{self.host}/lab/workspaces/{Path(notebook).stem}/tree/{notebook}?reset&token={self.token}"

    def status(self) -> int:
        with urllib.request.urlopen(self.url) as response:
            return response.status

    def post(self, path: str, content: dict) -> None:
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(f"{self.host}/{path}", json.dumps(content).encode(), headers))

    def sessions(self) -> list[dict]:
        headers = {"Authorization": f"token {self.token}"}
        with urllib.request.urlopen(urllib.request.Request(f"{self.host}/api/sessions", headers=headers)) as response:
            return json.load(response)

    def end_kernels(self) -> None:
        """As when a learner stops the lab and comes back another day."""
        headers = {"Authorization": f"token {self.token}"}
        for session in self.sessions():
            address = f"{self.host}/api/sessions/{session['id']}"
            urllib.request.urlopen(urllib.request.Request(address, headers=headers, method="DELETE"))

    def restart_kernels(self) -> None:
        for session in self.sessions():
            self.post(f"api/kernels/{session['kernel']['id']}/restart", {})

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=120)


class LessonPage:
    """A browser page that shows a notebook; it remembers the page's errors and requests."""

    def __init__(self, page, server: LabServer):
        self.page = page
        page.set_default_timeout(120_000)  # the machine may be slow, or shared
        self.server = server
        self.errors: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def open(self, address: str) -> None:
        """Returns when the notebook is shown and its kernel is idle."""
        self.page.goto(address)
        self.ready()

    def ready(self) -> None:
        self.page.locator(".jp-NotebookPanel:visible .jp-Cell").first.wait_for()
        idle = ".jp-NotebookPanel:visible .jp-Notebook-ExecutionIndicator[data-status=idle]"
        self.page.locator(idle).wait_for()
        # The indicator says so before there is a kernel, too.
        self.page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()

    def open_lesson(self, notebook: str) -> None:
        """`notebook`: as seen from the course's folder, such as notebooks/01_roofline.ipynb."""
        self.open(self.server.address(notebook))

    def run_all(self, timeout_s: float = 120) -> None:
        """Run > Run All Cells, as a learner clicks it; returns when the last cell has run."""
        # A built notebook shows numbers from its last run: they would look like this one's.
        self.page.get_by_role("menuitem", name="Edit", exact=True).click()
        self.page.get_by_role("menuitem", name="Clear Outputs of All Cells", exact=True).click()
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        self.page.wait_for_function(
            r"""() => {
                // A folded input has a placeholder, whose prompt is empty.
                const shown = '.jp-CodeCell .jp-InputPrompt:not(.jp-Placeholder-prompt)';
                const prompts = [...document.querySelectorAll(shown)].map(prompt => prompt.textContent);
                return prompts.length && prompts.every(prompt => /\[\d+\]/.test(prompt));
            }""",
            timeout=timeout_s * 1000,
        )

    def run_cells(self, number: int) -> None:
        """Shift+Enter on the first `number` cells, each when the one before has run."""
        cells = self.page.locator(".jp-NotebookPanel:visible .jp-Notebook-cell")
        cells.first.locator(".jp-InputPrompt, .jp-MarkdownOutput").first.click()
        for each in range(number):
            self.page.keyboard.press("Shift+Enter")
            prompt = cells.nth(each).locator(".jp-InputPrompt")
            self.page.wait_for_function("node => !node.textContent.includes('*')", arg=prompt.element_handle())

    def focused(self) -> str:
        """The name of what has the keyboard, as a screen reader would say it."""
        return self.page.evaluate(
            "() => { const at = document.activeElement;"
            " return at.getAttribute('aria-label') ?? at.labels?.[0]?.textContent ?? at.textContent; }"
        )

    def save(self) -> None:
        with self.page.expect_response(lambda reply: reply.request.method == "PUT" and "/api/contents/" in reply.url):
            self.page.keyboard.press("Control+s")

    def kernel_errors(self) -> list[str]:
        """Tracebacks, and what was written to stderr, in every cell of the notebook."""
        kinds = ("error", "stderr")
        selector = ", ".join(f"[data-mime-type='application/vnd.jupyter.{kind}']" for kind in kinds)
        return self.page.locator(selector).all_text_contents()

    def violations(self, *places: str) -> list[str]:
        """Serious ones that axe-core finds in the cells' outputs and texts: what is around them is JupyterLab's own."""
        from axe_playwright_python.sync_playwright import Axe

        # JupyterLab leaves out what lies below the window.
        self.page.add_style_tag(content=".jp-Cell { content-visibility: visible !important; }")
        context = {"include": list(places or (".jp-OutputArea", ".jp-MarkdownOutput"))}
        found = Axe().run(self.page, context, {"resultTypes": ["violations"]}).response["violations"]
        return [
            f"{each['id']}: {each['nodes'][0]['html'][:200]}"
            for each in found
            if each["impact"] in ("serious", "critical")
        ]

    def requests_elsewhere(self) -> list[str]:
        """The addresses asked for that are not this server's."""
        own = (self.server.host, self.server.host.replace("http", "ws"), "data:", "blob:")
        return [url for url in self.requests if not url.startswith(own)]
