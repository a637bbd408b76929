"""Texts that claim to be API documents: JSON and YAML of a hostile author."""

import msgspec

from app.apis.documents.protocols import read_document
from app.base.errors import ApiDocumentError
from tests.support.every_row import every_row
from tests.support.processor_time import within

HOSTILE: list[str] = [
    "[" * 100_000,
    '{"a":' * 3000,
    "a: " + "9" * 5000,
    "a: 1e999",
    '{"a": 1e999}',
    '{"a": ' + "9" * 400 + "}",
    "- " * 20_000,
    "{a: " * 300,
    "a: &a {<<: *a}",
    "\n".join(["a0: &a0 {x: 1}"] + [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 18)]),
    "\n".join(["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 8)]),
    "a: !!python/object:os.system {}",
    "? {a: 1}\n: 2",
    "\x00",
    "a: \ud800",
]


def test_hostile_text_is_refused_or_read_within_moments() -> None:
    with every_row() as row:
        for text in HOSTILE:
            with row(text):
                with within():
                    try:
                        read = read_document(text)
                    except ApiDocumentError:
                        continue
                msgspec.json.encode(read)
