"""Training samples of the seed policy: on disk, and drills that teach it to copy before it writes code.

A policy that cannot look up a value in its prompt cannot write code about it. A small model is slow to learn
copying, not code, and a drill takes a fraction of the tokens that demonstrations need.
"""

from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer

from trainer.atomic_write import write_atomically
from trainer.learning.batch import Sample
from trainer.worlds.seed_policy.tokenizer import ASSISTANT, END, USER


def save_samples(samples: Sequence[Sample], path: Path) -> None:
    """Write the samples, completely or not at all. Raises StorageError."""
    content = BytesIO()
    np.savez_compressed(
        content,
        ids=np.array([token for sample in samples for token in sample.ids], dtype=np.uint16),
        sampled=np.array([each for sample in samples for each in sample.sampled], dtype=np.bool_),
        lengths=np.array([len(sample.ids) for sample in samples], dtype=np.uint32),
    )
    write_atomically(content.getvalue(), path)


def load_samples(paths: Iterable[Path]) -> list[Sample]:
    """The samples of several files, in order."""
    return [sample for path in paths for sample in _load(path)]


def _load(path: Path) -> list[Sample]:
    with np.load(path) as stored:
        ids, sampled, ends = stored["ids"], stored["sampled"], np.cumsum(stored["lengths"]).tolist()
    return [
        Sample(tuple(ids[start:end].tolist()), tuple(sampled[start:end].tolist()))
        for start, end in pairwise([0, *ends])
    ]


def drills(tokenizer: Tokenizer, words: list[str], count: int, pairs: tuple[int, int], seed: int) -> list[Sample]:
    """`count` drills over single-token words, each with between pairs[0] and pairs[1] pairs."""
    rng = Random(f"drill {seed} {pairs}")
    tokens = [_id(tokenizer, word) for word in words]
    marks = {mark: _id(tokenizer, mark) for mark in (USER, ASSISTANT, END, ":", " ", "\n")}
    return [_drill(rng, tokens, marks, rng.randint(*pairs)) for _ in range(count)]


def _drill(rng: Random, tokens: list[int], marks: dict[str, int], pairs: int) -> Sample:
    keys, values = rng.sample(tokens, pairs), rng.choices(tokens, k=pairs)
    asked = rng.sample(range(pairs), min(pairs, rng.randint(1, 6)))
    ids, sampled = [marks[USER]], [False]
    for key, value in zip(keys, values, strict=True):
        line = [key, marks[":"], marks[" "], value, marks["\n"]]
        ids, sampled = ids + line, sampled + [False] * len(line)
    for index in asked:
        ids, sampled = [*ids, keys[index], marks[" "]], [*sampled, False, False]
    ids, sampled = [*ids, marks[END], marks[ASSISTANT]], [*sampled, False, False]
    for index in asked:
        ids, sampled = [*ids, values[index], marks[" "]], [*sampled, True, True]
    return Sample((*ids, marks[END]), (*sampled, True))


def _id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"{token!r} is not one token")
    return int(found)
