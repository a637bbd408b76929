"""A fair start for live traffic: a policy that knows how to use skills, and does so in about half of the cases.

The seed policy leaves nothing to find: it hardly ever tries what it does not do already. A lesson from scripted
demonstrations, in services as busy as those it will meet, makes one that samples good choices and bad ones. The
reproduction's supervised start is made the same way.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tqdm import tqdm

from app.base.model_catalog import SEED
from app.base.settings import Settings
from app.client.server import SageClient
from trainer.sft.collection import CollectionSettings, ExpertAccess, collect
from trainer.worlds.simulate_live.simulation import ended_run

_EXPERT = "scripted?inline=0.1&ignore=0.6&trust=1.0&unprepared=0.08&page=0.08&synonym=0.04"
_SCENARIOS = 100
_SETTINGS = {"kind": "sft", "steps": 60, "lr": 0.001, "micro_batch_tokens": 4096, "gate_scenarios": 0}


def teach(server: SageClient, project: str, busy: float) -> dict[str, Any]:
    """The project's release from then on."""
    wanted = CollectionSettings(expert=_EXPERT, environment=f"office?busy={busy}", scenarios=_SCENARIOS)
    with TemporaryDirectory() as folder:
        chats = Path(folder) / "demonstrations.jsonl"
        with tqdm(total=_SCENARIOS, desc="demonstrations", unit="scenario", disable=None) as bar:
            asyncio.run(collect(wanted, ExpertAccess(), Settings(model=SEED), chats, bar.update))
        data = server.upload("/v1/datasets", chats, project=project, name="lesson")["id"]
        body = {"project": project, "settings": _SETTINGS | {"data": data}}
        run = server.request("POST", "/v1/training-runs", body)
        ended_run(server, run["id"])
    releases = server.request("GET", "/v1/releases", project=project)
    release = next(each for each in releases if each["training_run_id"] == run["id"])
    active: dict[str, Any] = server.request("POST", f"/v1/releases/{release['id']}/activate")
    return active
