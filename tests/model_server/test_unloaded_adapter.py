"""An adapter that is unloaded between the check of a request and its generation."""

from pathlib import Path

import pytest

from app.base.errors import NotFoundError
from app.engine.tokenizer import ChatTokenizer
from app.model_server.api import CompletionRequest, EngineService, LoadAdapterRequest
from tests.model_server.test_engine_scheduler import scheduling
from tests.support.tiny_adapter import make_adapter
from tests.support.tiny_model import make_model_dir


@pytest.mark.parametrize("again", [False, True])
async def test_the_base_does_not_answer_in_the_place_of_an_adapter_that_was_unloaded(
    tmp_path: Path, again: bool
) -> None:
    model_dir = make_model_dir(tmp_path / "model")
    adapter = LoadAdapterRequest("one", str(make_adapter(model_dir, tmp_path / "adapter", 1)))
    with scheduling(model_dir) as scheduler:
        service = EngineService(ChatTokenizer.load(model_dir), scheduler._adapters, scheduler, 2)
        await service.load(adapter)
        prepared = service.prepare(CompletionRequest(model="one", prompt=[1, 2, 3], max_tokens=2))
        await service.unload("one")
        if again:
            await service.load(adapter)
        with pytest.raises(NotFoundError, match="`one` does not exist"):
            async for _ in service.generate(prepared, stream=False):
                pass
