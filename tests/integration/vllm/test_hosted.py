"""vLLM's chat route as a hosted model: no flag of ours is needed."""

import pytest

from app.base.errors import EngineRefusalError
from app.engine.hosted.client import Abilities, OpenAiChatModel
from app.engine.hosted.probe import probe
from app.engine.tokenizer import Message
from tests.integration.vllm.conftest import Servers

ASKED = [Message("user", "archive every one of my mails from iris")]


async def test_vllm_is_probed_and_answers_up_to_a_stop_string(servers: Servers) -> None:
    async with OpenAiChatModel(servers[0].url, "base") as model:
        assert await probe(model) == Abilities(context=1024)
        whole = await model.answer(ASKED, max_tokens=60, temperature=0)
        assert (whole.finish, whole.tokens.estimated) == ("stop", False)
        assert min(whole.tokens.prompt, whole.tokens.generated) > 0
        cut = await model.answer(ASKED, max_tokens=60, temperature=0, stop_strings=("\n```\n", "print"))
        assert cut.text == whole.text.partition("print")[0]
        short = await model.answer(ASKED, max_tokens=3, temperature=0)
        assert (short.finish, short.tokens.generated) == ("length", 3)


async def test_a_name_that_vllm_does_not_have_is_refused_with_those_that_it_has(servers: Servers) -> None:
    async with OpenAiChatModel(servers[0].url, "bas") as model:
        with pytest.raises(EngineRefusalError, match=r"has no model 'bas' \(404: .*did you mean base\?"):
            await probe(model)
