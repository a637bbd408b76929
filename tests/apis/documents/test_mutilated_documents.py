"""Documents with parts replaced, repeated or removed at random are refused, or give an app that can be used."""

import random
from typing import Any

import msgspec

from app.base.values import Json
from tests.support.document_parts import REF, nest, parsed, use
from tests.support.every_row import every_row
from tests.support.processor_time import within
from trainer.worlds.office.apps import APP_NAMES, Site, document

NASTY: list[Json] = [
    None,
    True,
    -1,
    10**400,
    1e308,
    float("nan"),
    "",
    "x" * 5_000,
    "\x00\r\n",
    "#/paths",
    "^(a+)+$",
    [],
    [None],
    {},
    {"$ref": "#"},
    {"$ref": "#/paths/~1x/get"},
    {"": {"": 0}},
    list(range(300)),
    nest("items", 300),
    {"type": ["null", 7]},
    {"allOf": [{"$ref": f"{REF}Loop"}, {"not": {}}], "nullable": True},
]


def test_a_mutilated_document_is_refused_or_usable() -> None:
    with every_row() as row:
        for seed in range(150):
            with row(seed):
                pick = random.Random(seed)
                made = document(Site.of(seed % 5), pick.choice(list(APP_NAMES)), "http://a.test/{world}")
                made = msgspec.json.decode(msgspec.json.encode(made))
                made.setdefault("components", {})["schemas"] = {"Loop": {"anyOf": [{"$ref": f"{REF}Loop"}] * 3}}
                for _ in range(pick.randrange(1, 6)):
                    _mutilate(made, pick)
                with within():
                    if app := parsed(made):
                        use(app)


def _mutilate(node: Any, pick: random.Random) -> None:
    """Replace, repeat or remove one part somewhere below."""
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = pick.choice(keys)
        below = node[key]
        if isinstance(below, dict | list) and below and pick.random() < 0.8:
            node = below
            continue
        match pick.randrange(3):
            case 0 if isinstance(node, dict):
                node[pick.choice(["$ref", "allOf", "type", "in", "name", "schema", "enum", str(key)])] = below
            case 1 if len(node) > 1:
                del node[key]
            case _:
                node[key] = pick.choice(NASTY)
        return
