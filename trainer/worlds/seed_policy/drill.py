"""Copying drills: a policy that cannot look up a value in its prompt cannot write code about it.

Each drill lists pairs of words and asks for the partners of some of them. A small model is slow to learn copying,
not code, and a drill takes a fraction of the tokens that demonstrations need.
"""

from random import Random

from tokenizers import Tokenizer

from trainer.learning.batch import Sample
from trainer.worlds.seed_policy.word_tokenizer import ASSISTANT, END, USER


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
