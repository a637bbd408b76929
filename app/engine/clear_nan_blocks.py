"""Weights that gave NaN are gone, and short prompts of others still fail: how a server gets over it.

vLLM does not clear free blocks of its cache, and NaN in the unused part of one spoils whoever gets it (0 * NaN).
It gives out first what was freed last, so that one long prompt writes over them.
"""

from app.engine.protocol import Sampling
from app.engine.replica import Replica
from app.records import BASE

_LONG = 2048  # tokens: more than the prompts of a proof have together
_SOME = 512  # where a server does not say how many it takes


async def rinse(replica: Replica, max_model_len: int | None) -> None:
    """Raises what `complete` raises."""
    length = min(max_model_len or _SOME, _LONG) - 1
    prompt = tuple(1 + number % 31 for number in range(length))
    once = Sampling(max_tokens=1, temperature=0)
    await replica.complete(prompt, model=BASE, sampling=once, loading=True)
