"""A server with all capabilities is accepted; one that lacks a flag is refused, naming it."""

import re
from pathlib import Path

import pytest

from app.base.errors import SettingError
from app.engine.client import HttpEngine
from app.engine.replica import ServerRequirements
from tests.integration.vllm.adapters import RANK
from tests.integration.vllm.conftest import Servers
from tests.integration.vllm.server import SEED_POLICY, SLOTS, WITH_LORA, VllmServer


def needs(directory: Path, rank: int) -> ServerRequirements:
    return ServerRequirements(adapters=directory, model=SEED_POLICY, rank=rank, loras=2)


async def test_replicas_with_all_flags_are_accepted(servers: Servers, tmp_path: Path) -> None:
    async with HttpEngine([each.url for each in servers], requirements=needs(tmp_path, RANK)) as engine:
        found = await engine.check()
        assert [each.url for each in found] == [each.url for each in servers]
        for each in found:
            assert each.version.startswith("0.32")
            assert (each.max_model_len, each.max_loras, each.rank, each.note) == (1024, SLOTS, RANK, "")
        assert await engine.loaded() == ["base"]


async def test_a_rank_above_the_flag_is_refused(servers: Servers, tmp_path: Path) -> None:
    async with HttpEngine([servers[1].url], requirements=needs(tmp_path, 2 * RANK)) as engine:
        with pytest.raises(SettingError, match=f"start it with --max-lora-rank {2 * RANK}"):
            await engine.check()
        assert not engine.replicas[0].alive


@pytest.mark.parametrize(
    ("flags", "updating", "words"),
    [
        ([], True, "--enable-lora"),
        (WITH_LORA, False, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
        ([*WITH_LORA, "--logprobs-mode", "processed_logprobs"], True, "--logprobs-mode raw_logprobs"),
    ],
    ids=["without adapters", "without loading", "other logprobs"],
)
async def test_a_server_that_lacks_a_flag_is_refused_with_its_name(
    tmp_path: Path, flags: list[str], updating: bool, words: str
) -> None:
    server = VllmServer(tmp_path / "vllm.log", flags, updating=updating)
    try:
        async with HttpEngine([server.wait().url], requirements=needs(tmp_path, RANK)) as engine:
            with pytest.raises(SettingError, match=re.escape(words)):
                await engine.check()
    finally:
        server.stop()
