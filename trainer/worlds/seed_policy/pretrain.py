"""Train the seed policy: copying drills, then supervised steps on demonstrations; at last it becomes a Llama.

A policy that cannot look up a value in its prompt cannot write code about it. A small model is slow to learn
copying, not code, and a drill takes a fraction of the tokens that demonstrations need.

It needs only torch, transformers and the work directory with the demonstrations. To use a GPU elsewhere, run
`python -m trainer.worlds.seed_policy.pretrain WORK --device cuda` there and copy the work directory back.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import Module
from tqdm import tqdm
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config

from app.base.files import write_atomically
from trainer.learning.batch import Sample
from trainer.learning.model import describe, pick_device
from trainer.learning.supervised import SftSettings, SftStep, train_sft
from trainer.worlds.recipes import MAX_LENGTH, Recipe
from trainer.worlds.seed_policy.tokenizer import ASSISTANT, END, PAD, USER

_SHARED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
_ADDED = "self_attn.o_proj.bias"
_DRILL_WORDS = "drill_words.json"
_RECORD = "training.json"


class TrainingCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of the training."""

    parameters: int
    seconds: float  # of the last call: a resumed training counts from its resumption
    machine: str


def train(work: Path, recipe: Recipe, device: torch.device) -> None:
    """Run all phases, resuming from checkpoints in `work`; writes `model/` and a record there."""
    started = time.monotonic()
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    words = msgspec.json.decode((work / _DRILL_WORDS).read_bytes(), type=list[str])
    model = new_model(recipe, tokenizer)
    Module.to(model, device)
    for name, pairs in (("drill-short", (1, 4)), ("drill-long", (3, 16))):
        samples = drills(tokenizer, words, recipe.drills, pairs, recipe.seed)
        _phase(work, name, model, samples, recipe, recipe.drill_steps)
    demonstrations = load_samples(sorted(work.glob("demonstrations-*.npz")))
    _phase(work, "sft", model, demonstrations, recipe, recipe.steps)
    as_llama(model).save_pretrained(work / "model")
    record = TrainingCost(
        parameters=model.num_parameters(), seconds=time.monotonic() - started, machine=describe(device)
    )
    (work / _RECORD).write_bytes(msgspec.json.encode(record))


def is_trained(work: Path) -> bool:
    """The record is written last, so the model is complete if it exists."""
    return (work / _RECORD).exists()


def read_record(work: Path) -> TrainingCost:
    return msgspec.json.decode((work / _RECORD).read_bytes(), type=TrainingCost)


def write_drill_words(work: Path, words: list[str]) -> None:
    """Store the words of the drills next to the tokenizer, so that training needs no environment."""
    (work / _DRILL_WORDS).write_bytes(msgspec.json.encode(sorted(words)))


def new_model(recipe: Recipe, tokenizer: Tokenizer) -> PreTrainedModel:
    """A freshly initialized Qwen2, the same for the same seed."""
    torch.manual_seed(recipe.seed)
    end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        Qwen2Config(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=recipe.hidden,
            intermediate_size=recipe.mlp,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=1,
            max_position_embeddings=MAX_LENGTH,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=end,
            pad_token_id=pad,
        ),
        attn_implementation="eager",
    )
    return model


@torch.no_grad()
def as_llama(model: PreTrainedModel) -> LlamaForCausalLM:
    """A copy on the CPU. Raises RuntimeError if a weight has no counterpart."""
    shared = {name: getattr(model.config, name) for name in _SHARED}
    llama = LlamaForCausalLM(LlamaConfig(**shared, attention_bias=True))
    weights = {name: weight.cpu() for name, weight in model.state_dict().items()}
    for name, parameter in llama.named_parameters():
        if name.endswith(_ADDED):
            weights[name] = torch.zeros_like(parameter)
    llama.load_state_dict(weights)
    return llama


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


def drills(tokenizer: Tokenizer, words: list[str], count: int, pairs: tuple[int, int], seed: int) -> list[Sample]:
    """`count` drills over single-token words, each with between pairs[0] and pairs[1] pairs."""
    rng = Random(f"drill {seed} {pairs}")
    tokens = [_id(tokenizer, word) for word in words]
    marks = {mark: _id(tokenizer, mark) for mark in (USER, ASSISTANT, END, ":", " ", "\n")}
    return [_drill(rng, tokens, marks, rng.randint(*pairs)) for _ in range(count)]


def _load(path: Path) -> list[Sample]:
    with np.load(path) as stored:
        ids, sampled, ends = stored["ids"], stored["sampled"], np.cumsum(stored["lengths"]).tolist()
    return [
        Sample(tuple(ids[start:end].tolist()), tuple(sampled[start:end].tolist()))
        for start, end in pairwise([0, *ends])
    ]


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


def _phase(
    work: Path, name: str, model: PreTrainedModel, samples: list[Sample], recipe: Recipe, steps: int
) -> None:
    settings = SftSettings(steps=steps, lr=recipe.lr, tokens=recipe.tokens, seed=recipe.seed)
    with tqdm(total=steps, desc=name, file=sys.stderr) as bar:

        def report(step: SftStep) -> None:
            bar.update(step.index - bar.n)
            if step.index % 20 == 0:
                bar.set_postfix(loss=f"{step.loss:.4f}", accuracy=f"{step.accuracy:.4f}")

        train_sft(model, samples, settings, work / f"{name}.checkpoint", report)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--device", default="auto")
    for name, value in msgspec.structs.asdict(Recipe()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    given = vars(parser.parse_args())
    work, device = given.pop("work"), pick_device(given.pop("device"))
    torch.set_float32_matmul_precision("high")
    train(work, Recipe(**given), device)


if __name__ == "__main__":
    main()
