"""Which finished rows are cached, and which of them matches a prompt."""

from collections.abc import Sequence

from app.model_server.kv_cache import Ids, PrefixCache, as_ids

SHARED = list(range(100, 120))


class Held:
    """The blocks that a cache holds: each row's only block is its place in the order of adding."""

    def __init__(self, *rows: Ids) -> None:
        self.blocks: list[int] = []
        self.cache = PrefixCache(self.blocks.extend, self._drop)
        for number, ids in enumerate(rows):
            self.cache.add(1, ids, [number])

    def found(self, ids: Ids, adapter: int = 1) -> tuple[int, Sequence[int]]:
        return self.cache.longest_match(adapter, ids)

    def _drop(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.blocks.remove(block)


def row(*ends: int, start: Sequence[int] = SHARED) -> Ids:
    return as_ids([*start, *ends])


def test_the_longest_shared_prefix_is_used() -> None:
    held = Held(row(1, 2, 3), row(1, 2, 9, 9), row(7))
    assert held.found(row(1, 2, 9, 8)) == (23, [1])
    assert held.found(row(7, 7)) == (21, [2])


def test_rows_of_other_weights_never_match() -> None:
    assert Held(row(1)).found(row(1), adapter=2) == (0, ())


def test_a_prompt_with_another_start_reuses_nothing() -> None:
    held = Held(row(1))
    assert held.found(row(1, start=[5, *SHARED[1:]])) == (0, ())
    assert held.found(as_ids(SHARED[:15])) == (0, ())


def test_a_row_too_short_to_be_worth_keeping_is_not_cached() -> None:
    assert Held(as_ids(SHARED[:15])).blocks == []


def test_a_row_that_another_extends_is_replaced() -> None:
    held = Held(row(1), row(2), row(1, 3))
    assert held.blocks == [1, 2]
    assert held.found(row(1)) == (21, [2])


def test_the_least_recently_used_row_is_dropped_first() -> None:
    held = Held(row(1), row(2))
    held.found(row(1))
    held.cache.drop_oldest()
    assert held.blocks == [0]
    assert held.found(row(1)) == (21, [0])
    assert held.found(row(2))[0] == 20


def test_the_rows_of_an_adapter_are_dropped_with_it() -> None:
    held = Held(row(1), row(2))
    held.cache.drop_adapter(1)
    assert (held.blocks, held.found(row(1))) == ([], (0, ()))
