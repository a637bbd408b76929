"""Keys and values are read where they lie, in consecutive blocks of the pool, with the same result."""

import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from app.model_server.decoder import Decoder, load_model
from app.model_server.generation import Generation
from app.model_server.kv_cache import BLOCK
from tests.model_server.test_engine_scheduler import asking
from tests.model_server.test_kv_memory import admitted, memory_of, run
from tests.support.tiny_model import make_model_dir


def runs_in(blocks: Sequence[int]) -> int:
    return 1 + sum(after != block + 1 for block, after in pairwise(blocks))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return Decoder(
        load_model(make_model_dir(tmp_path_factory.mktemp("model"), spread=0.3), "cpu", torch.float32), 1
    )


@pytest.mark.parametrize(
    "tables",
    [
        pytest.param([[5, 6, 7]], id="one row"),
        pytest.param([[3, 4, 9, 10, 2], [20, 21], [30]], id="in several runs, of several lengths"),
        pytest.param([[8, 9, 11], [8, 9, 14, 15]], id="a common beginning"),
    ],
)
def test_views_and_samples_give_the_logits_of_a_gathered_pass(decoder: Decoder, tables: list[list[int]]) -> None:
    lengths = [len(table) * BLOCK - 5 * (row + 1) for row, table in enumerate(tables)]
    for row, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        decoder.prefill([table], [[(7 * row + token) % 250 for token in range(length)]], [0])
    # Each row runs three tokens in one pass, as with two drafted ones.
    rows = [table for table in tables for _ in range(3)]
    positions = [length + step for length in lengths for step in range(3)]
    found = []
    for sample, limit in ((True, 0), (False, 0), (False, math.inf)):
        decoder.cache.can_sample, decoder.cache._viewed_bytes = sample, limit
        found.append(decoder.advance(rows, [9, 8, 7] * len(tables), positions))
        assert bool(decoder.cache._sampled) == (sample and len(tables) > 1)
    assert decoder.cache._runs(tables[0]) == []
    assert torch.allclose(found[0], found[2], atol=1e-4)
    assert torch.allclose(found[1], found[2], atol=1e-4)
    assert not torch.allclose(found[0][0], found[0][1], atol=1e-2)


def test_short_runs_are_gathered_and_long_ones_are_viewed(decoder: Decoder) -> None:
    block = decoder.cache.block_bytes // decoder.cache.blocks.shape[0]
    decoder.cache._viewed_bytes = 2 * block
    assert decoder.cache._runs([4]) == []
    assert decoder.cache._runs([4, 6]) == []
    assert decoder.cache._runs([4, 5, 8, 9, 10]) == [(4, 2), (8, 3)]


def test_rows_that_grow_together_stay_consecutive() -> None:
    memory = memory_of(200)
    rows = [asking(range(5 * BLOCK + number), 12 * BLOCK) for number in range(10)]
    for row in rows:
        assert admitted(memory, row)
        run(memory, row, 1)
    for length in range(BLOCK, 12 * BLOCK, BLOCK):
        for row in rows:
            run(memory, row, length)
    assert [runs_in(row.blocks) for row in rows] == [1] * 10


def test_blocks_of_agents_lie_in_runs_while_prefixes_fill_the_pool() -> None:
    """16 at once share a beginning, and take some turns, each with the tokens of those before it."""
    memory, rng = memory_of(300), random.Random(1)
    new = lambda: [*range(100), *rng.choices(range(9), k=rng.randrange(100, 500))]  # noqa: E731
    prompts, blocks, runs = [new() for _ in range(16)], 0, 0
    for _ in range(60):
        rows = list[Generation]()
        for prompt in prompts:
            row = asking(prompt, 200)
            if admitted(memory, row, rows):
                run(memory, row, 1)
                rows.append(row)
        for tokens in range(1, 120):
            for row in rows:
                run(memory, row, tokens)
        for row in rows:
            blocks, runs = blocks + len(row.blocks), runs + runs_in(row.blocks)
            memory.release(row, keep=True)
        prompts = [new() if rng.random() < 0.3 else [*prompt, *rng.choices(range(9), k=90)] for prompt in prompts]
    assert memory.pool.find_run(300, []) != range(1, 301)
    assert blocks / runs > 3
