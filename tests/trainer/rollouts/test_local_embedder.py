"""The trainer's own embedder."""

from trainer.engines.embedded import local_embedder


async def test_it_has_loaded_its_model_before_the_first_skill_is_looked_for() -> None:
    async with local_embedder() as embedder:
        assert embedder._embeddings._model is not None
        [vector] = await embedder.embed(["archive all mails"])
    assert vector.shape == (384,)
