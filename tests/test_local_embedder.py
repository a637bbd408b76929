"""The trainer's own embedder."""

import asyncio

from trainer.engines.local_embedder import local_embedder


async def test_it_has_loaded_its_model_before_the_first_skill_is_looked_for() -> None:
    async with local_embedder() as embedder, asyncio.timeout(3):
        [vector] = await embedder.embed(["archive all mails"])
    assert vector.shape == (384,)
