"""The still course map in README.md, from the built lessons and exercises.

python source/course_map.py            write it
python source/course_map.py --check    write nothing; fail where it has drifted
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from helpers.learning.course_map import still_map  # noqa: E402, as build.py this runs as a script

BEGIN, END = "<!-- the map of the course -->", "<!-- end of the map -->"


def with_map(readme: str, course: Path) -> str:
    """`readme` with the map between its two marks.

    Raises:
        ValueError: the marks are not there.
    """
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md lacks {BEGIN} and {END}: put them where the map shall stand")
    return f"{before}{begin}\n\n{still_map(course)}\n\n{end}{after}"


def main(arguments: list[str]) -> int:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    drawn = with_map(text, ROOT)
    if arguments == ["--check"]:
        print("README's map is the course's" if drawn == text else "README's map has drifted: run `make notebooks`")
        return 0 if drawn == text else 1
    readme.write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
