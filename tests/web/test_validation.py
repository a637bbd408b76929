"""Patterns of request values fit the whole value."""

import ast
import re
from pathlib import Path

from tests.support.every_row import every_row

SAMPLES = [
    "a",
    "A",
    "a1",
    "ab",
    "0" * 32,
    "a" * 64,
    "2020-01-01",
    "application/json",
    "https://a.test",
    "mail.send",
    "#",
    "a:b",
    "secret:staging-key",
    "",
]


def patterns() -> list[str]:
    """Of every `Meta(pattern=...)` in the source."""
    found: set[object] = set()
    for path in [*Path("app").rglob("*.py"), *Path("trainer").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Meta"):
                given = [each.value for each in node.keywords if each.arg == "pattern"]
                found.update(each.value for each in given if isinstance(each, ast.Constant))
    return sorted(map(str, found))


def test_a_pattern_accepts_no_newline_by_its_anchor_alone() -> None:
    with every_row() as row:
        for pattern in patterns():
            with row(pattern):
                accepted = [text for text in SAMPLES if re.search(pattern, text)]
                assert accepted, "add a sample that the pattern accepts"
                strict = re.sub(r"\$$", r"\\Z", pattern)
                for text in accepted:
                    assert bool(re.search(pattern, f"{text}\n")) == bool(re.search(strict, f"{text}\n"))


def test_the_patterns_are_found() -> None:
    assert len(patterns()) >= 4
