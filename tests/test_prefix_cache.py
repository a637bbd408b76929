"""Which finished rows are cached, and which of them matches a prompt."""

from collections.abc import Sequence

import torch

from app.engine.embedded.prefix_cache import Ids, PrefixCache, as_ids

SHARED = list(range(100, 120))
ROOM = 2**20


def row(*ends: int, start: Sequence[int] = SHARED) -> Ids:
    return as_ids([*start, *ends])


def kept(*rows: Ids, max_bytes: int = ROOM) -> PrefixCache:
    """Each row's block holds its place in the order of adding."""
    prefixes = PrefixCache(max_bytes)
    for number, ids in enumerate(rows):
        prefixes.add(1, ids, torch.full((1, 2, 1, len(ids), 1), number))
    return prefixes


def found(prefixes: PrefixCache, ids: Ids, adapter: int = 1) -> tuple[int, int | None]:
    count, block = prefixes.longest_match(adapter, ids)
    return count, None if block is None else int(block.flatten()[0])


def test_the_longest_shared_prefix_is_used() -> None:
    prefixes = kept(row(1, 2, 3), row(1, 2, 9, 9), row(7))
    assert found(prefixes, row(1, 2, 9, 8)) == (23, 1)
    assert found(prefixes, row(7, 7)) == (21, 2)


def test_rows_of_other_weights_never_match() -> None:
    assert found(kept(row(1)), row(1), adapter=2) == (0, None)


def test_a_prompt_with_another_start_reuses_nothing() -> None:
    prefixes = kept(row(1))
    assert found(prefixes, row(1, start=[5, *SHARED[1:]])) == (0, None)
    assert found(prefixes, as_ids(SHARED[:15])) == (0, None)


def test_a_row_too_short_to_be_worth_copying_is_not_cached() -> None:
    assert kept(as_ids(SHARED[:15])).size == 0


def test_a_row_that_another_extends_is_replaced() -> None:
    prefixes = kept(row(1), row(2), row(1, 3))
    assert prefixes.size == (21 + 22) * 2 * 8
    assert found(prefixes, row(1)) == (21, 2)


def test_the_least_recently_used_row_is_dropped_when_the_cache_is_full() -> None:
    prefixes = kept(row(1), row(2), max_bytes=2 * 21 * 2 * 8)
    found(prefixes, row(1))
    prefixes.add(1, row(3), torch.zeros(1, 2, 1, 21, 1, dtype=torch.int64))
    assert found(prefixes, row(1)) == (21, 0)
    assert found(prefixes, row(2))[0] == 20


def test_the_rows_of_an_adapter_are_dropped_with_it() -> None:
    prefixes = kept(row(1), row(2))
    prefixes.drop_adapter(1)
    assert (prefixes.size, found(prefixes, row(1))) == (0, (0, None))
