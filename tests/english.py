"""Count English that reads translated, by pattern: docs/writing.md has the rules, tests/test_english.py the ceilings.

Reads markdown cells, strings and comments in source/lessons and source/exercises, the hand-written pages in docs/, and
docstrings, messages and comments in helpers/ and kernels/. Code spans, formulas, link targets and HTML comments are
left out. It finds about half of the cases.

    python tests/english.py                       counts by fault and kind
    python tests/english.py --list F1 lessons     each hit for one fault and one kind
"""

import argparse
import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("lessons", "exercises", "docs", "code")

THING = (
    r"(?:bytes?|B|KB|MB|GB|bits?|registers?|numbers?|elements?|values?|blocks?|warps?|threads?|lanes?|sectors?|"
    r"requests?|instructions?|programs?|loads?|stores?|rows?|columns?|FLOPs?|operations?|products?|additions?|"
    r"launch(?:es)?|kernels?|tokens?|tiles?|heads?|quer(?:y|ies)|keys?|points?|bars?|panels?|lines?|cells?|scales?|"
    r"biases|bias|stages?|steps?|files?|copies|copy|calls?|us|box(?:es)?|results?|names?|passes|pass|evaluations?|"
    r"scores?|exponentials?|picture|answers?|counters?|dollars)"
)
UNIT = (
    r"(?:thread|element|lane|block|SM|program|row|launch|number|score|layer|token|kernel|warp|expert|head|step|tile|"
    r"clock|cycle|call|column|request|group|channel|query|stage|panel|figure|version|process|processor|key|product|"
    r"place|bar|unit|line|student|exercise|notebook|cell|vector|input|load|FLOP|byte|counter|feature|round|image|pair|"
    r"direction|name|way|kind|rank|resource|address|label|symbol|dimension|side|turn|pixel|bank|wavefront|wave|sector|"
    r"queue|page)"
)
FAULTS = {
    "F1": (  # a thread, for per thread
        rf"\b{THING} an? {UNIT}\b(?! (?:of|that|at a|which|whose|[a-z]+s|has|can|may|must|did|will)\b)|"
        rf"\b(?:[Aa]|[Oo]ne) {UNIT} an? {UNIT}\b"
    ),
    "F2": (  # sooner, times as long, the least bytes
        r"\bsooner\b|\btimes as (?:long|many|much|soon|large|far)\b|\btimes (?:fewer|less|longer)\b|\btwice as soon\b|"
        r"\bhalf as \w+ again\b|\b(?:the|at its|their|whose|of) least (?:time|bytes|size|number|that|possible|tile)\b|"
        r"\bleast (?:time|bytes)\b|\bthe most (?:that|bytes|registers|memory|is |blocks)"
    ),
    "F3": (  # stand, lie, hang on, come of
        r"\b(?:stands?|stood|standing)\b(?! (?:out|for)\b)|\b(?:lies?|lain|lying)\b(?! (?:between|along)\b)|"
        r"\blay\b(?! (?:\w+ )?out\b)|\bh[au]ngs? on\b|\b(?:becomes?|became|comes?|came|makes?|made) of "
        r"(?!the same|no|one|two|three|four|five)|\bmade (?:anew|round)\b"
    ),
    "F4": (  # everything says and tells
        r"\b(?:says?|tells?) (?:so|what|how|where|which|why|whether|when|who|it|that|nothing|no|of|by)\b|"
        r"\b(?:is|are|was|were|be|been|not|unless|until) (?:said|told|spoken)\b|\btold (?:of|in|by|beside|what)\b|"
        r"\bspeaks? (?:of|for)\b|\b(?:that|which|who|message|meter|compiler|table|docstring|file|line|column|picture|"
        r"chart|curve|clock|report|page|driver|result|test) (?:says?|tells?)\b"
    ),
    "F5": (  # is no multiple, nobody
        r"(?<!there )\b(?:is|are|was|were|be) (?:no|none)\b(?! (?:longer|more|less|better|worse|faster|slower|larger|"
        r"smaller|different|need|way|reason|such|GPU|gaps?))|(?<!user )(?<!As )(?<!as )\b[Nn]obody\b|"
        r"\bwhich is none\b|\b(?:has|have) (?:not|none|no)\b(?= (?:the|a|whole|so|of|that|as)\b|[.,;])|"
        r"\bnothing but\b|\bthat are no\b"
    ),
    "F6": (  # what and who as nouns
        r"(?<=[.!;:,] )[Ww]hat (?!if\b|about\b|happens|for\b|did\b|do\b|does\b|kind\b)[^?.;]{4,90}[.;:,](?=\s|$)|"
        r"\b(?:of|than|with|by|from|for|to|into|in|beside|between|before|after|but|as|and|or|on|at) what "
        r"(?!if\b|they|kind)[a-z']+\b(?![^.;]*\?)|(?<=[.!;:,] )(?:who|whoever|Who|Whoever) [^?.;]{4,90}[.;,]|"
        r"\b(?:whoever|Whoever)\b"
    ),
    "F7": (  # of which, from X on, Of ... first
        r"\b(?:of|by|from|to|with|for|at|on|under|through|than|after|behind|beyond|about|around) wh(?:ich|om|ose)\b"
        r"(?![^.;]*\?)|\b[Ff]rom (?:which|what|there|then|\d[\d,]*|the [a-z]+(?: [a-z]+)?) (?:[a-z0-9]+ ){0,3}on\b"
        r"(?! (?:a|an|the|one|which|to|its|GPU|each|tensor)\b)|(?:^|(?<=[.;:!?] ))Of (?!course\b)|"
        r"(?<=: )of (?:the|a|an|each|its|what|one|all|two)\b|\bfrom [\w.()' ,*]{1,25} on[.,;:)]"
    ),
    "F8": (  # is to, need not, shall, to be had
        r"\b(?:is|are|was|were) (?:not )?to (?:be|give|have|do|take|say|make|hold|show|write|compute|land|go|come|keep|"
        r"wait|run|share|find|read|choose|know)\b|\bneeds? not\b|\bneed never\b|\bshall\b|\bto be (?:had|found|seen|"
        r"read|told|mended|said|looked|fitted|judged|added|graded|run|sent|drawn|asked)\b|\b(?:can|could|may) be had\b"
    ),
    "F9": (  # bookish links
        r"\bin (?:its|their) place\b|\bin place of\b|\bat hand\b|\bbesides?\b|\ball the same\b|\banew\b|\bbut for\b|"
        r"\bin vain\b|\b(?:weights|gradient|constants|units|terms|parts|work) apart\b|\blikewise\b|\bmoreover\b|"
        r", too(?=[.,;:)?!]|$)|, for (?:it|they|this|that|what|there|then|no|memory|arithmetic)\b|"
        r"\b(?:mend|mended|mends|mending)\b|\bunder way\b|\bon (?:its|their) way\b|\bas well(?! as\b)|"
        r"\bsome others\b|\bwithal\b|\bso many\b|\bof (?:itself|themselves)\b"
    ),
}
DOCSTRING_FRAGMENT = re.compile(  # F10b
    r"^(?:What|Whether|How|Who|Whose|Where|When|Which|Of|Those|As|With|By|Between|On|In|From|To|At|Before|The same|So|"
    r"Until|Less|More|Not)\b"
)
HEADING_RIDDLE = re.compile(  # F10a
    r"\b(nobody|somebody|anyone|whose|who|is to|to be had|not known|yours|made of it|lets go|keeps|said|for nothing|"
    r"need not|is never|decided for)\b|\bon (trial|the clock)\b|\bin which\b|^(?:\d+\w? )?What (it|is|stays|comes|may|"
    r"shares)\b|: (what|when|one|compute|let|a )|, and (how|where|why)\b|beside",
    re.IGNORECASE,
)
MESSAGE_RIDDLE = re.compile(  # F10c
    r"\bexpected$|(?:is|are) expected\b|: there are |: give |: name |^no \w+ is (?:called|named)|(?<!there )\bis no\b|"
    r"\bmend\b|: it has "
)
ALL = (*FAULTS, "F10a", "F10b", "F10c")
PATTERNS = {name: re.compile(pattern) for name, pattern in FAULTS.items()}
BLANKED = (r"<!--.*?-->", r"```.*?```", r"\$\$.*?\$\$", r"\$[^$\n]*\$", r"<[^>\n]{1,80}>")
LEFT_OUT = [re.compile(each, re.DOTALL) for each in BLANKED]
NO_SENTENCE = re.compile(r"[{};=<>]{2}|function|\bvar\b|\.(global|shared|reg)\b|^\s*<")
PRAGMA = re.compile(r"(noqa|type:|ruff|fmt)")
GENERATED = ("claims.md", "fusion_proof.md")


class Hit(NamedTuple):
    """One place: `fault` as in ALL, `kind` as in KINDS, `at` "file:line", `text` some of what is around it."""

    fault: str
    kind: str
    at: str
    text: str


Lines = list[tuple[int, str]]


def blank(text: str) -> str:
    """`text` with what is not English replaced by as many spaces; a code span, a noun to its sentence, by x's."""
    for pattern in LEFT_OUT:
        text = pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    text = re.sub(r"`[^`]*`", lambda found: re.sub(r"[^\n]", "x", found[0]), text)
    return re.sub(r"\]\([^)]*\)", lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def paragraphs(lines: Lines) -> list[Lines]:
    """Runs of lines that belong together; a heading, an item and a table's row are each one."""
    found, current = [], []
    for number, text in lines:
        begins = re.match(r"\s*(?:[-*]|\d+\.)\s|\s*#+ |\s*\|", text)
        if current and (not text.strip() or number != current[-1][0] + 1 or begins):
            found.append(current)
            current = []
        if text.strip():
            current.append((number, text.strip()))
            if re.match(r"#+ ", text):
                found.append(current)
                current = []
    return [*found, current] if current else found


def markdown_cells(path: Path) -> Lines:
    """The lines of a source's markdown cells."""
    found, inside = [], False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("# %%"):
            inside = "[markdown]" in line
            found.append((number, ""))
        elif inside:
            found.append((number, re.sub(r"^# ?", "", line)))
    return found


def python_texts(path: Path) -> Iterator[tuple[str, Lines]]:
    """("docstring", its first paragraph), ("more", another one), ("message", a string), ("comment", a run of them)."""
    source = path.read_text(encoding="utf-8")
    tree, known = ast.parse(source), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)) and node.body:
            value = getattr(node.body[0], "value", None)
            if isinstance(node.body[0], ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                known.add(id(value))
                lines = [(value.lineno + at, line) for at, line in enumerate(value.value.splitlines())]
                for at, each in enumerate(paragraphs(lines)):
                    yield "more" if at else "docstring", each
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            known.update(id(value) for value in node.values)
            text = "".join(each.value if isinstance(each, ast.Constant) else "X" for each in node.values)
            if len(text.split()) > 2:
                yield "message", [(node.lineno, text.replace("\n", " "))]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in known:
            continue
        if len(node.value.split()) > 2 and not NO_SENTENCE.search(node.value):
            yield "message", [(node.lineno, node.value.replace("\n", " "))]
    run: Lines = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ")
        if token.type != tokenize.COMMENT or token.string.startswith("# %%") or PRAGMA.match(text):
            continue
        if run and token.start[0] != run[-1][0] + 1:
            yield "comment", run
            run = []
        run.append((token.start[0], text))
    if run:
        yield "comment", run


def texts_of(root: Path) -> Iterator[tuple[str, str, Path, Lines]]:
    """(kind, what it is, file, paragraph) of everything that is read."""
    for kind in ("lessons", "exercises"):
        for path in sorted((root / "source" / kind).glob("*.py")):
            lines = markdown_cells(path)
            for each in paragraphs(lines):
                yield kind, "markdown", path, each
            in_markdown = {number for number, text in lines if text}
            for what, each in python_texts(path):
                if each[0][0] not in in_markdown:
                    yield kind, what, path, each
    pages = [root / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    for path in (*pages, *sorted((root / "docs").glob("*.md"))):
        if path.name not in (*GENERATED, "writing.md"):  # which quotes the faults
            text = path.read_text(encoding="utf-8")
            text = re.sub(r"```.*?```", lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.DOTALL)
            for each in paragraphs(list(enumerate(text.splitlines(), 1))):
                yield "docs", "markdown", path, each
    for folder in ("helpers", "kernels"):
        for path in sorted((root / folder).rglob("*.py")):
            for what, each in python_texts(path):
                yield "code", what, path, each


def faults_in(what: str, paragraph: str) -> Iterator[tuple[str, int, str]]:
    """(fault, where it begins, text) of each fault in one paragraph, of the kind `what`."""
    text = blank(paragraph)
    flat = text.replace("\n", " ")
    if what == "markdown" and (heading := re.match(r"^#+ (.+)$", paragraph)):
        if len(heading[1].split()) > 2 and HEADING_RIDDLE.search(heading[1]):
            yield "F10a", 0, heading[1]
        return
    for fault, pattern in PATTERNS.items():
        for found in pattern.finditer(flat):
            yield fault, found.start(), flat[max(0, found.start() - 30) : found.end() + 30]
    if what == "docstring" and DOCSTRING_FRAGMENT.match(flat):
        yield "F10b", 0, flat[:100]
    if what == "message" and MESSAGE_RIDDLE.search(flat):
        yield "F10c", 0, flat[:100]


def hits(root: Path = ROOT) -> list[Hit]:
    found = []
    for kind, what, path, lines in texts_of(root):
        paragraph = "\n".join(text for _, text in lines)
        for fault, start, text in faults_in(what, paragraph):
            line = lines[min(blank(paragraph)[:start].count("\n"), len(lines) - 1)][0]
            found.append(Hit(fault, kind, f"{path.relative_to(root)}:{line}", text))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", nargs=2, metavar=("FAULT", "KIND"), help="each place, such as F1 lessons")
    chosen = parser.parse_args()
    found = hits()
    if chosen.list:
        print("\n".join(f"{each.at}: {each.text}" for each in found if [each.fault, each.kind] == chosen.list))
        return
    counts = Counter((each.fault, each.kind) for each in found)
    print(f"{'':6}" + "".join(f"{kind:>11}" for kind in KINDS))
    for fault in ALL:
        print(f"{fault:6}" + "".join(f"{counts[fault, kind]:>11}" for kind in KINDS))


if __name__ == "__main__":
    main()
