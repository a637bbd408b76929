"""One name means one thing: no public class and no module of `app` and `trainer` shares its name with another.

A row of `app/db` and the value of `app.records` that it holds are one thing, and so are the modules of `api/`,
`client/`, `cli/`, `console/` and `db/` that serve, use, show and store one resource.
"""

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import app

_ROOT = Path(app.__file__).parent.parent
_FILES = sorted(path.relative_to(_ROOT) for top in ("app", "trainer") for path in (_ROOT / top).rglob("*.py"))
_ROWS_AND_VALUES = {Path("app/db/task_rows.py"), Path("app/records.py")}
_RESOURCE_FOLDERS = {"api", "client", "cli", "console", "db"}
_SHARED_MODULES = {"__init__", "__main__", "protocol", "routes"}


def test_no_two_public_classes_share_a_name() -> None:
    places = defaultdict(set)
    for path in _FILES:
        for name in _public_classes(path):
            places[name].add(path)
    clashes = _clashes(places, lambda paths: paths == _ROWS_AND_VALUES)
    assert not clashes, "rename all but one of each:\n" + "\n".join(clashes)


def test_no_two_modules_share_a_name() -> None:
    places = defaultdict(set)
    for path in _FILES:
        places[path.stem].add(path)
    for name in _SHARED_MODULES:
        places.pop(name, None)
    clashes = _clashes(places, lambda paths: {path.parent.name for path in paths} <= _RESOURCE_FOLDERS)
    assert not clashes, "rename all but one of each:\n" + "\n".join(clashes)


def _public_classes(path: Path) -> Iterator[str]:
    for node in ast.parse((_ROOT / path).read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def _clashes(places: Mapping[str, set[Path]], allowed: Callable[[set[Path]], bool]) -> list[str]:
    return [
        f"{name}: {', '.join(sorted(map(str, paths)))}"
        for name, paths in sorted(places.items())
        if len(paths) > 1 and not allowed(paths)
    ]
