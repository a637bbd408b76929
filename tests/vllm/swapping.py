"""Hot swap before live servers, and the rows and proofs that it goes by."""

from pathlib import Path

from peft import PeftModel

from app.db import models, releases
from app.db.models import ReleaseState
from app.db.session import Sessions
from app.engine.client import HttpEngine
from app.hot_swap.engine import HotSwap
from app.hot_swap.files import AdapterDirectory
from app.records import Probe
from tests.rows import project_row
from tests.tiny_adapter import plain_model
from tests.vllm.asking import spoken
from tests.vllm.server import SEED_POLICY
from trainer.learning.lora import Published
from trainer.learning.probe import make_probe


def open_swap(engine: HttpEngine, sessions: Sessions, directory: Path) -> HotSwap:
    return HotSwap(engine, sessions, AdapterDirectory(directory, SEED_POLICY, base="seed"))


def probe_of(adapter: Published) -> Probe:
    """As the trainer makes it after a run."""
    model = PeftModel.from_pretrained(plain_model(SEED_POLICY), str(adapter.path)).eval()
    return make_probe(model, spoken("archive my mails"))


async def release_row(sessions: Sessions, model: str, state: ReleaseState) -> models.Release:
    """The only one of a project of its own."""
    async with sessions.begin() as session:
        release = await releases.active(session, (await project_row(session)).id)
        release.model, release.state = model, state
    return release
