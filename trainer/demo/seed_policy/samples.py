"""Training samples on disk: a few megabytes for millions of tokens."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from trainer.learning.batch import Sample


def save_samples(samples: Sequence[Sample], path: Path) -> None:
    """Write samples; a crash leaves no partial file under this name."""
    partial = path.with_suffix(".partial")
    with partial.open(
        "wb"
    ) as file:  # to a name, numpy would append .npz, and the partial file would look complete
        np.savez_compressed(
            file,
            ids=np.array([token for sample in samples for token in sample.ids], dtype=np.uint16),
            sampled=np.array([each for sample in samples for each in sample.sampled], dtype=np.bool_),
            lengths=np.array([len(sample.ids) for sample in samples], dtype=np.uint32),
        )
    partial.rename(path)


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
