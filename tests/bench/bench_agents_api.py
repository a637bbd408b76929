"""The API that `bench_agents` calls, in a process of its own. Prints its URL."""

import asyncio

from tests.support.ledger import Ledger


async def main() -> None:
    async with Ledger().listening() as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
