"""A saved notebook, converted by plain nbconvert: each picture has a description, and its text isn't shown twice."""

from pathlib import Path

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbconvert import HTMLExporter

from helpers.figures import WarpExplorer

SAMPLE = {"00_welcome"}  # in `make test`
PATHS = sorted((Path(__file__).parents[1] / "notebooks").glob("[01]*.ipynb"))
NOTEBOOKS = [
    pytest.param(path, marks=[] if path.stem in SAMPLE else [pytest.mark.long], id=path.stem) for path in PATHS
]


def converted(notebook: nbformat.NotebookNode) -> BeautifulSoup:
    return BeautifulSoup(HTMLExporter().from_notebook_node(notebook)[0], "html.parser")


def explorers_of(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    """Picture and line of each: what is stored beside its HTML."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    stored = [output.data for output in outputs if {"image/png", "text/html"} <= output.get("data", {}).keys()]
    return [(data["image/png"].replace("\n", ""), data["text/plain"]) for data in stored]


def shown_in(page: BeautifulSoup) -> list[tuple[str, str]]:
    """Picture and description of each figure, which has no other text but how to move it."""
    figures = page.select(".jp-OutputArea-output figure")
    assert {figure.text for figure in figures} <= {"", "Run this cell to move it."}
    return [(figure.img["src"].removeprefix("data:image/png;base64,"), figure.img["alt"]) for figure in figures]


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_each_picture_of_a_lesson_has_its_text(path):
    notebook = nbformat.read(path, as_version=4)
    explorers = explorers_of(notebook)
    assert explorers, "a lesson has a picture"
    assert shown_in(converted(notebook)) == explorers


def test_a_notebook_that_a_learner_ran_and_saved_shows_the_same():
    """Its outputs name widgets of a kernel that is gone."""
    explorer = WarpExplorer(dtype="fp16", stride=2)
    data, metadata = explorer._repr_mimebundle_()
    output = nbformat.v4.new_output("execute_result", data, metadata=metadata, execution_count=1)
    cell = nbformat.v4.new_code_cell("explorer", outputs=[output], execution_count=1)
    [(picture, alt)] = shown_in(converted(nbformat.v4.new_notebook(cells=[cell])))
    assert picture == data["image/png"]
    assert alt == explorer.text


def test_a_line_with_marks_of_html_stays_what_it_is(monkeypatch):
    explorer = WarpExplorer()
    told = 'stride < 2 & "fp32"'
    chart = explorer.chart()
    monkeypatch.setattr(type(explorer), "chart", lambda self: type(chart)(chart.figure, told))
    page = BeautifulSoup(explorer._repr_mimebundle_()[0]["text/html"], "html.parser")
    assert page.img["alt"] == told
