"""Any number of skills, as a large project has them, in a database.

Of the instructions 70 % are drawn from templates (16 verbs x 10 things x 2 selectors, three phrasings), two thirds
of them with a slot for the detail; the others have 4 to 13 words of a vocabulary of 390 with Zipf's frequencies.
Vectors have 384 dimensions, in 2,000 clusters whose sizes fall with rank ** -0.7, around 20 centers. Within a
cluster the variance falls with the dimension, as in embeddings of text: the ten nearest have a cosine of 0.87.
"""

import random
from collections.abc import Iterator
from uuid import UUID

import numpy as np
import psycopg
from numpy.typing import NDArray

DIMENSION = 384
EMBEDDER = "synthetic"
_BLOCK = 65_536
_VERBS = [
    "archive",
    "delete",
    "star",
    "pin",
    "share",
    "play",
    "skip",
    "pay",
    "cancel",
    "move",
    "copy",
    "rename",
    "count",
    "total",
    "flag",
    "mute",
]
_THINGS = ["mails", "notes", "songs", "payments", "files", "meetings", "todos", "albums", "invoices", "contacts"]
_PHRASINGS = ["{} every one of my {} {} {}", "{} all {} {} {}", "please {} the {} {} {}"]
_WORDS = [
    f"{first}{vowel}{last}"
    for first in "bcdfgklmnprst"
    for vowel in "aeiou"
    for last in ("n", "rk", "st", "lo", "ve", "ge")
]
_WEIGHTS = [1 / (1 + rank) for rank in range(len(_WORDS))]
_SOURCE = (
    "def {name}(who: str) -> int:\n"
    + 12 * "    # a line of a function, as long as they are in the middle of many\n"
)
_COLUMNS = {
    "id": "uuid",
    "project_id": "uuid",
    "name": "text",
    "version": "int4",
    "state": "text",
    "signature": "text",
    "source": "text",
    "apis": "text[]",
    "instruction": "text",
    "slots": "text[]",
    "scenario": "text",
    "embedder": "text",
    "query_vector": "bytea",
    "source_vector": "bytea",
    "rev": "int8",
}


def instructions(seed: int) -> Iterator[tuple[str, list[str]]]:
    """Endlessly: the text, and its slots."""
    draw = random.Random(seed)
    while True:
        if draw.random() < 0.3:
            yield " ".join(draw.choices(_WORDS, _WEIGHTS, k=draw.randrange(4, 14))), []
            continue
        place, value = draw.choice(
            [("from", f"person{draw.randrange(5000)}"), ("in", f"label{draw.randrange(500)}")]
        )
        phrase = draw.choice(_PHRASINGS).format(draw.choice(_VERBS), draw.choice(_THINGS), place, value)
        yield phrase, [value] if draw.random() < 0.67 else []


def vectors(count: int, seed: int) -> Iterator[NDArray[np.float32]]:
    """Blocks (B, D) of together `count` vectors of norm 1. Equal seeds give equal ones."""
    fixed, draw = np.random.default_rng(0), np.random.default_rng(seed + 1)
    apps, templates = fixed.normal(size=(20, DIMENSION)), fixed.normal(size=(2000, DIMENSION))
    centers = (0.6 * apps[fixed.integers(0, 20, 2000)] + 0.8 * templates) / np.sqrt(DIMENSION)
    spread = (1 + np.arange(DIMENSION)) ** -0.5
    rotation = np.linalg.qr(fixed.normal(size=(DIMENSION, DIMENSION)))[0].astype(np.float32)
    shares = (1 + np.arange(2000)) ** -0.7
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        noise = draw.normal(size=(size, DIMENSION)) * (0.5 * spread / np.linalg.norm(spread))
        block = centers[draw.choice(2000, size, p=shares / shares.sum())] + noise.astype(np.float32) @ rotation
        yield (block / np.linalg.norm(block, axis=1, keepdims=True)).astype(np.float32)


def store(database_url: str, project_id: UUID, count: int) -> None:
    """Skill number n has the id n + 1 and the revision n + 1. All are active."""
    columns = ", ".join(_COLUMNS)
    texts = instructions(seed=0)
    blocks = zip(vectors(count, seed=0), vectors(count, seed=1), strict=True)
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        number = 0
        with connection.cursor().copy(f"COPY skills ({columns}) FROM STDIN (FORMAT BINARY)") as copy:
            copy.set_types(list(_COLUMNS.values()))
            for queries, sources in blocks:
                for query, source in zip(queries, sources, strict=True):
                    number += 1
                    text, slots = next(texts)
                    name = f"skill_{number}"
                    copy.write_row(
                        (
                            UUID(int=number),
                            project_id,
                            name,
                            1,
                            "active",
                            f"{name}(who: str) -> int",
                            _SOURCE.format(name=name),
                            ["mail.search"],
                            text,
                            slots,
                            f"scenario_{number % 1000}",
                            EMBEDDER,
                            query.tobytes(),
                            source.tobytes(),
                            number,
                        )
                    )
        connection.execute("UPDATE projects SET skill_rev = %s WHERE id = %s", (count, project_id))
        connection.execute("VACUUM ANALYZE skills")
