"""The parts that the handlers of all routes get, as one value, so that tests can hand in their own."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import httpx
import msgspec

from app.apis.documents.reader import DocumentReader
from app.apis.mcp.connection import McpCommand
from app.db.database import Sessions
from app.db.disk_space import Disk
from app.db.notify import NotificationListener
from app.engine.client import ModelServer
from app.engine.dispatch import Occupancy
from app.engine.model_scope import ModelScope
from app.engine.tokenizer import ChatTokenizer
from app.machine.routes import ReadinessCheck
from app.projects.settings import Limits
from app.releases.adapter_store import AdapterDirectory
from app.releases.hosted_models import HostedModels
from app.releases.promotion import FirstRelease, Promoter
from app.runs.broker import NotifyWorkers
from app.runs.datasets import DataRules, DatasetStore
from app.runs.schedule import Serving
from app.skills.library import SkillSearch


async def _no_disks() -> Sequence[Disk]:
    return ()


class Dependencies(msgspec.Struct, frozen=True, kw_only=True):
    """A request handler gets each of these by naming it as a parameter."""

    sessions: Sessions
    listener: NotificationListener
    library: SkillSearch
    promoter: Promoter
    first_release: FirstRelease
    adapters: AdapterDirectory
    notify_workers: NotifyWorkers
    http_client: httpx.AsyncClient  # fetches OpenAPI documents
    document_reader: DocumentReader
    mcp_commands: Mapping[str, McpCommand] = {}
    hosted_endpoints: HostedModels = HostedModels()  # no name of a field of a request
    readiness_checks: Mapping[str, ReadinessCheck]
    datasets: DatasetStore
    data_rules: DataRules = DataRules()
    public_url: str = "http://127.0.0.1:8000"  # where users reach this server
    occupancy: Callable[[], Occupancy]  # of the model servers
    model_servers: Callable[[], Sequence[ModelServer]] = tuple
    disks: Callable[[], Awaitable[Sequence[Disk]]] = _no_disks  # of this machine
    model_scope: ModelScope = ModelScope()
    tokenizer: ChatTokenizer | None = None  # None: trajectories come without the text of their prompts
    judged: bool = False  # a judge scores what nobody else does
    chat_wait_seconds: float = 600.0  # for the answer of a chat
    serving: Serving = Serving()  # what runs learn from
    limits: Limits = Limits()  # of projects that have none of their own
