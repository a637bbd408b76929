"""The contract of the import rows: what it refuses."""

import pytest
from grimp import ImportGraph

from tests.support.rows_contract import RowsContract

_ROWS = ["routes: web.*", "tasks: work.* db.tasks", "ground: db db.* base"]

_MODULES = ["app.web.pages", "app.work.run", "app.db", "app.db.tasks", "app.db.tables", "app.base"]


@pytest.mark.parametrize(
    ("importer", "imported", "wrong"),
    [
        ("app.web.pages", "app.db.tables", []),
        ("app.db.tasks", "app.db.tables", []),
        ("app.work.run", "app.work.run", []),
        ("app.db.tables", "app.db.tasks", ["app.db.tables (ground) imports app.db.tasks (tasks)"]),
        ("app.base", "app.web.pages", ["app.base (ground) imports app.web.pages (routes)"]),
        ("app.new", "app.base", ["new is in no row"]),
        ("app.webs", "app.base", ["webs is in no row"]),
    ],
)
def test_imports_go_down_and_every_module_has_a_row(importer: str, imported: str, wrong: list[str]) -> None:
    graph = ImportGraph()
    for module in {
        "app.web.pages",
        "app.work.run",
        "app.db",
        "app.db.tasks",
        "app.db.tables",
        "app.base",
        importer,
    }:
        graph.add_module(module)
    if importer != imported:
        graph.add_import(importer=importer, imported=imported)
    contract = RowsContract("rows", {}, {"package": "app", "rows": _ROWS})
    assert contract.check(graph, verbose=False).metadata["wrong"] == wrong


def test_a_pattern_that_fits_nothing_is_told() -> None:
    graph = ImportGraph()
    graph.add_module("app.base")
    contract = RowsContract("rows", {}, {"package": "app", "rows": ["ground: base gone.*"]})
    assert contract.check(graph, verbose=False).metadata["wrong"] == ["no module is gone.*"]
