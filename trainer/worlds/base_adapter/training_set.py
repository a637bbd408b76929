"""The samples that the processes of the training read, on disk."""

from collections import Counter
from pathlib import Path

import msgspec

from app.engine.tokenizer import ChatTokenizer
from trainer.atomic_write import write_atomically
from trainer.learning.batch import Sample
from trainer.sft_data.chat_samples import build_samples
from trainer.worlds.base_adapter.demonstration_files import DemonstrationFile, read_demonstrations


class TrainingSet(msgspec.Struct, frozen=True, kw_only=True):
    """Samples, and for the card what they are."""

    samples: list[Sample]
    demonstrations: dict[str, int]  # by part of the mix
    dropped: dict[str, int]  # by reason

    @property
    def tokens(self) -> int:
        return sum(len(sample.ids) for sample in self.samples)

    @property
    def learned_tokens(self) -> int:
        return sum(sum(sample.sampled) for sample in self.samples)


def write_training_set(files: list[DemonstrationFile], tokenizer: ChatTokenizer, path: Path) -> None:
    """Tokenize the demonstrations, unless that was done. Raises InvalidError where none fits the model."""
    if path.exists():
        return
    counts = Counter[str]()
    for file in files:
        counts[file.part.name] += file.path.read_bytes().count(b"\n")
    built = build_samples(read_demonstrations(files), tokenizer)
    whole = TrainingSet(samples=built.samples, demonstrations=dict(counts), dropped=built.dropped)
    write_atomically(msgspec.msgpack.encode(whole), path)


def read_training_set(path: Path) -> TrainingSet:
    return msgspec.msgpack.decode(path.read_bytes(), type=TrainingSet)
