"""A process that calls the vault API: `python -m tests.support.vault_caller DATABASE_URL PROJECT_ID DOCUMENT`.

Opens several gateways, of which each knows the token, and prints a line; for each line that it reads, all of them
call at once, and it prints whom the API took them for.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

from app.apis.calls.network import open_client
from app.db.database import open_database
from tests.support.encryption_keys import TEST_KEYS
from tests.support.vault_api import open_gateway

GATEWAYS = 4


async def _call(database_url: str, project_id: str, document: dict[str, Any]) -> None:
    async with (
        open_database(database_url, keys=TEST_KEYS) as database,
        open_client(allow_private_hosts=True) as client,
    ):
        place = database.sessions, UUID(project_id), document, client
        while True:
            gateways = [await open_gateway(*place) for _ in range(GATEWAYS)]
            await asyncio.gather(*(each("vault.open", [], {}) for each in gateways))
            _tell("ready")
            if not await asyncio.to_thread(sys.stdin.readline):
                return
            answers = await asyncio.gather(*(each("vault.who_client", [], {}) for each in gateways))
            _tell(json.dumps([each["user"] for each in answers]))


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_call(sys.argv[1], sys.argv[2], json.loads(Path(sys.argv[3]).read_text())))
