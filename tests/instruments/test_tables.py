"""One table for text and for a notebook."""

import pytest
from bs4 import BeautifulSoup

from helpers.instruments import table

ROWS = (("fused", "4.5 us", 16), ("a < b", "12,345.0 us", ""))


def cells_of(made) -> list[list[str]]:
    page = BeautifulSoup(made._repr_html_(), "html.parser")
    return [[cell.text for cell in row.find_all(["th", "td"])] for row in page.find_all("tr")]


def test_text_and_html_say_the_same():
    made = table(("", "time", "by 2"), ROWS, "recorded & told\nin us")
    assert repr(made).splitlines() == [
        "recorded & told",
        "in us",
        "              time  by 2",
        "fused       4.5 us    16",
        "a < b  12,345.0 us",
    ]
    assert cells_of(made) == [["", "time", "by 2"], ["fused", "4.5 us", "16"], ["a < b", "12,345.0 us", ""]]
    page = BeautifulSoup(made._repr_html_(), "html.parser")
    title, shown = page.contents
    assert title.text == "recorded & toldin us", (
        "above the table, as wide as its words: a caption is as narrow as the table"
    )
    assert (shown.name, shown["aria-label"]) == ("table", "recorded & told; in us")
    assert [(head["scope"], head.text) for head in page.find_all("th")] == [
        ("col", "time"),
        ("col", "by 2"),
        ("row", "fused"),
        ("row", "a < b"),
    ], "a column without a name has no header, which a screen reader would read out"


@pytest.mark.parametrize(
    ("column", "side"),
    [
        (("12", "-0.5 MB", "+3.5%", "1.2 (3.00x)", ""), "right"),
        (("64 x 128", "4 x 16 x 2048"), "right"),
        (("12: y = tl.load(x)", "3: y"), "left"),
        (("1", "cuDNN"), "left"),
        (("16 x 8, 4 warps",), "left"),
    ],
)
def test_figures_stand_to_the_right_and_words_to_the_left(column, side):
    made = table(("of",), [[cell] for cell in column])
    cell = BeautifulSoup(made._repr_html_(), "html.parser").select_one("tbody th")
    assert f"text-align:{side}" in cell["style"]


def test_rows_may_be_made_as_they_are_asked_for_and_none_is_a_table_too():
    assert str(table(("a", 2), ((each, "x") for each in "yz"))) == "a  2\ny  x\nz  x"
    assert str(table(("a", "b"), [])) == "a  b"


def test_a_row_that_does_not_fit_is_told():
    with pytest.raises(ValueError, match="a row of 1 cells under 2 columns: x"):
        table(("a", "b"), [("x",)])
