"""Does tasks of a server with the clients of the package openenv, in that package's Python.

Standard input has the tasks, each a `seed` and the `code` that solves it; standard output gets what each client
saw.
"""

import asyncio
import json
import sys
from typing import Any

from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient


async def with_generic_client(url: str, tasks: list[dict[str, Any]]) -> dict[str, Any]:
    async with GenericEnvClient(base_url=url) as client:
        seen = [await client.reset(seed=each["seed"]) for each in tasks[:1]]
        rewards = []
        for each in tasks:
            await client.reset(seed=each["seed"])
            for code in each["code"]:
                action = {"type": "call_tool", "tool_name": "run_python", "arguments": {"code": code}}
                last = await client.step(action)
            rewards.append([last.reward, last.done])
        idle = await client.reset(seed=tasks[0]["seed"])
        done = await client.step({"type": "call_tool", "tool_name": "complete_task", "arguments": {"answer": -1}})
        state = await client.state()
        return {
            "instruction": seen[0].observation["instruction"],
            "rewards": rewards,
            "nothing": [idle.done, done.reward, done.done],
            "steps": state["step_count"],
        }


async def with_mcp_client(url: str, tasks: list[dict[str, Any]]) -> dict[str, Any]:
    async with MCPToolClient(base_url=url) as client:
        tools = await client.list_tools()
        rewards = []
        for each in tasks:
            first = await client.reset(seed=each["seed"])
            *begin, end = each["code"]
            for code in begin:
                await client.call_tool("run_python", code=code)
            last = await client.step(CallToolAction(tool_name="run_python", arguments={"code": end}))
            rewards.append([last.reward, last.done])
        await client.reset(seed=tasks[0]["seed"])
        printed = await client.call_tool("run_python", code="print(6 * 7)")
        return {
            "tools": [each.name for each in tools],
            "instruction": first.observation.instruction,
            "rewards": rewards,
            "printed": printed,
        }


async def main() -> None:
    url, tasks = sys.argv[1], json.load(sys.stdin)
    found = {"generic": await with_generic_client(url, tasks), "mcp": await with_mcp_client(url, tasks)}
    sys.stdout.write(json.dumps(found))


asyncio.run(main())
