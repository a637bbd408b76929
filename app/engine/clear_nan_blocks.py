"""Overwrites the KV cache blocks that weights with NaN left behind in a server.

vLLM does not clear freed blocks, and NaN in the unused part of a block spoils the next sequence in it (0 * NaN).
It reuses the blocks freed last first, so one long prompt overwrites them.
"""

from app.engine.protocol import Sampling
from app.engine.replica import Replica
from app.records import BASE

_LONG = 2048  # tokens: more than all prompts of a verification together
_SOME = 512  # where the server does not report its context length


async def clear_nan_blocks(replica: Replica, max_model_len: int | None) -> None:
    """Raises what `complete` raises."""
    length = min(max_model_len or _SOME, _LONG) - 1
    prompt = tuple(1 + number % 31 for number in range(length))
    once = Sampling(max_tokens=1, temperature=0)
    await replica.complete(prompt, model=BASE, sampling=once, control=True)
