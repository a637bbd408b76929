"""The KV cache keeps to its budget: who is admitted, what is shared, and what has to wait."""

import random
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
import torch

from app.base.errors import ModelError
from app.base.settings import Settings
from app.model_server.decoder import MB, Decoder, load_model
from app.model_server.generation import Generation
from app.model_server.kv_cache import BLOCK, PagedCache
from app.model_server.scheduler import KvMemory, PrefixMatch
from tests.model_server.test_engine_scheduler import asking, begin, scheduling
from tests.support.engine_process import engine_process
from tests.support.tiny_adapter import reference
from tests.support.tiny_model import make_model_dir

START = list(range(40))


def memory_of(blocks: int) -> KvMemory:
    """Of `blocks` blocks beside the sink; one layer, one head of one number."""
    cache = PagedCache(
        layers=1,
        heads=1,
        width=1,
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_bytes=(blocks + 1) * BLOCK * 2 * 4,
    )
    return KvMemory(cache)


def admitted(memory: KvMemory, generation: Generation, running: Sequence[Generation] = ()) -> bool:
    return memory.admit(generation, memory.match(generation, running))


def run(memory: KvMemory, generation: Generation, tokens: int) -> None:
    """As the scheduler does for a prompt and `tokens` sampled tokens."""
    generation.ids = [7] * tokens
    memory.extend(generation, len(generation.prompt) + tokens - 1)


def test_blocks_are_allocated_as_a_sequence_grows() -> None:
    memory = memory_of(8)
    generation = asking(range(BLOCK), 6 * BLOCK)
    assert admitted(memory, generation)
    assert memory.pool.in_use == 0
    run(memory, generation, 1)
    assert memory.pool.in_use == 1
    run(memory, generation, BLOCK + 2)
    assert memory.pool.in_use == 3


def test_a_request_waits_until_all_of_its_tokens_are_guaranteed() -> None:
    memory = memory_of(8)
    first, second, small = asking(range(BLOCK), 4 * BLOCK), asking(range(9), 3 * BLOCK + 1), asking([1], BLOCK)
    assert admitted(memory, first)  # 5 blocks
    assert not admitted(memory, second)  # 4 blocks
    assert admitted(memory, small)
    run(memory, first, 2)
    memory.release(first, keep=True)  # it ended early; what is cached makes room for those who need it
    assert admitted(memory, second)
    run(memory, second, 3 * BLOCK + 1)
    assert memory.pool.in_use == 4


def test_rows_with_one_prompt_hold_its_full_blocks_once() -> None:
    memory = memory_of(100)
    prompt = [number % 50 for number in range(10 * BLOCK + 5)]
    rows: list[Generation] = []
    for _ in range(8):
        generation = asking(prompt, BLOCK)
        assert admitted(memory, generation, rows)
        run(memory, generation, 1)
        rows.append(generation)
    assert memory.pool.in_use == 10 + 8
    assert len({tuple(row.blocks[:10]) for row in rows}) == 1
    assert len({row.blocks[10] for row in rows}) == 8
    for row in rows[:7]:
        memory.release(row, keep=False)
    assert memory.pool.in_use == 10 + 1


def test_a_shared_last_block_is_copied_so_that_its_owner_and_the_new_row_may_differ() -> None:
    memory = memory_of(10)
    cache = memory._cache
    owner = asking(START, 20)
    assert admitted(memory, owner)
    run(memory, owner, 1)
    cache.blocks[0, :, owner.blocks[1]] = 3.0
    other = asking([*START[:38], 9, 9], 20)
    assert memory.match(other, [owner]) == PrefixMatch(38, owner.blocks)
    assert admitted(memory, other, [owner])
    assert other.blocks[0] == owner.blocks[0]
    assert other.blocks[1] != owner.blocks[1]
    assert cache.blocks[0, :, other.blocks[1]].eq(3.0).all()


def test_nothing_is_shared_between_adapters() -> None:
    memory = memory_of(10)
    owner = asking(START, 20, adapter=1)
    assert admitted(memory, owner)
    run(memory, owner, 1)
    assert memory.match(asking(START, 20), [owner]).tokens == 0
    memory.release(owner, keep=True)
    assert memory.match(asking(START, 20), []).tokens == 0
    assert memory.match(asking(START, 20, adapter=1), []).tokens == 39


def test_values_that_are_not_finite_never_reach_the_next_sequence() -> None:
    memory = memory_of(2)
    broken = asking(START, 2)
    assert admitted(memory, broken)
    run(memory, broken, 1)
    memory._cache.blocks[:, :, broken.blocks] = float("nan")
    memory.discard(broken)
    assert torch.isfinite(memory._cache.blocks).all()
    assert (memory.pool.in_use, admitted(memory, asking(START, 20))) == (0, True)


def test_random_traffic_never_exceeds_the_budget_nor_loses_a_block() -> None:
    memory, rng = memory_of(40), random.Random(5)
    running: list[Generation] = []
    waited = 0
    for _ in range(3000):
        length = rng.randrange(1, 300)
        generation = asking(
            [*range(length // 2), *rng.choices(range(9), k=length - length // 2)], rng.randrange(1, 400)
        )
        if admitted(memory, generation, running):
            run(memory, generation, 1)
            running.append(generation)
        else:
            waited += 1
        for row in list(running):
            run(memory, row, min(row.max_tokens, len(row.ids) + rng.randrange(60)))
            if len(row.ids) == row.max_tokens or rng.random() < 0.1:
                running.remove(row)
                memory.release(row, keep=rng.random() < 0.8)
        assert memory.pool.in_use == len({block for row in running for block in row.blocks}) <= 40
    assert waited > 100
    for row in running:
        memory.release(row, keep=False)
    memory.prefixes.drop_adapter(0)
    assert (memory.pool.in_use, memory._reserved) == (0, 0)
    assert memory.pool.find_run(40, []) == range(1, 41)


def test_a_long_sequence_beside_many_short_ones_stays_under_the_budget_and_changes_nothing(tmp_path: Path) -> None:
    """1 MB holds 1,312 positions of this model; 41 rows as long as the longest would need 20,000."""
    model_dir = make_model_dir(tmp_path)
    long_prompt = [number % 250 for number in range(300)]
    prompts = [[number, 5, 8, *range(number)] for number in range(40)]
    with scheduling(model_dir, rows=64, kv_mb=1) as scheduler:
        alone = begin(scheduler, long_prompt, 200, seed=9)()
        long = begin(scheduler, long_prompt, 200, seed=9)
        waits = [begin(scheduler, prompt, 10, seed=number) for number, prompt in enumerate(prompts)]
        answers = [wait() for wait in waits]
        crowded = long()
        blocks = scheduler.memory._cache.blocks
        assert blocks.untyped_storage().nbytes() <= 2**20
    assert crowded.ids == alone.ids
    assert crowded.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.logprobs == pytest.approx(reference(model_dir, None, prompt, list(answer.ids)), abs=1e-4)


def test_the_default_budget_holds_11616_positions_of_a_model_of_135_million_parameters() -> None:
    budget = Settings().engine_kv_mb * MB
    cache = PagedCache(
        layers=30, heads=3, width=64, dtype=torch.float32, device=torch.device("cpu"), max_bytes=budget
    )
    assert cache.block_bytes == BLOCK * 2 * 30 * 3 * 64 * 4  # keys and values, layers, heads, width, float32
    assert cache.blocks.untyped_storage().nbytes() <= budget
    assert KvMemory(cache).tokens == 11_616


def test_a_request_beyond_the_cache_is_refused_with_the_setting_that_admits_it(tmp_path: Path) -> None:
    model_dir = make_model_dir(tmp_path, spread=0.3)
    config = model_dir / "config.json"
    config.write_text(
        config.read_text().replace('"max_position_embeddings": 512', '"max_position_embeddings": 4096')
    )
    with (
        engine_process(model_dir, "--embeddings", "none", "--kv-mb", "1") as url,
        httpx.Client(base_url=url, timeout=300) as http,
    ):
        card = http.get("/v1/models").json()["data"][0]
        held = card["max_model_len"]
        assert held == 1312
        refused = http.post("/v1/completions", json={"prompt": [5] * 1000, "max_tokens": 1000})
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == (
            f"The KV cache holds {held} tokens, but the prompt has 1000 and max_tokens asks for 1000 more: "
            "raise SAGE_ENGINE_KV_MB (--kv-mb), or shorten the prompt or ask for fewer."
        )
        whole = http.post(
            "/v1/completions", json={"prompt": [5] * (held - 4), "max_tokens": 4, "ignore_eos": True}
        )
        assert whole.json()["usage"]["completion_tokens"] == 4


def test_a_budget_that_holds_next_to_nothing_is_refused_at_the_start(tmp_path: Path) -> None:
    model = load_model(make_model_dir(tmp_path), "cpu", torch.float32)
    with pytest.raises(ModelError, match="a KV cache of 0 MB holds 0 tokens of this model: raise SAGE_ENGINE_"):
        Decoder(model, 0)
