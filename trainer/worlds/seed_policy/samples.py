"""Training samples on disk: a few megabytes for millions of tokens."""

from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np

from trainer.atomic_write import write_atomically
from trainer.learning.batch import Sample


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
