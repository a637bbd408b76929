"""Serves two environments with the server of the package openenv, in that package's Python.

`tally` has tools: a number is to be raised to that of the seed, and told. `guess` has none: a number is guessed.
"""

import sys
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class Tally(MCPEnvironment):  # type: ignore[misc]
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("tally")
        self._wanted = self._value = 0

        @server.tool
        def raise_by(amount: int) -> int:
            """Raise the tally."""
            if amount != 1:
                raise ValueError("a tally is raised by 1")
            self._value += amount
            return self._value

        @server.tool
        def tell(what: int) -> str:
            """Tell how much it is."""
            return f"you told {what}"

        super().__init__(server)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:  # noqa: ARG002
        self._wanted, self._value = seed or 0, 0
        return Observation(metadata={"goal": f"Raise the tally to {self._wanted}, and tell it."})

    async def step_async(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        observation = await super().step_async(action, timeout_s)
        if isinstance(action, CallToolAction) and action.tool_name == "tell":
            right = self._value == self._wanted == action.arguments.get("what")
            observation.done, observation.reward = True, float(right)
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:  # noqa: ARG002
        raise ValueError("there are only tools")

    @property
    def state(self) -> State:
        return State()


class GuessAction(Action):  # type: ignore[misc]
    """Guess the number."""

    number: int = Field(description="below ten")


class GuessObservation(Observation):  # type: ignore[misc]
    hint: str


class Guess(Environment):  # type: ignore[misc]
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._wanted = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:  # noqa: ARG002
        self._wanted = (seed or 0) * 7 % 10
        return GuessObservation(hint="Guess a number below ten.")

    def step(self, action: GuessAction, timeout_s: float | None = None, **_: Any) -> Observation:  # noqa: ARG002
        if not 0 <= action.number < 10:
            raise ValueError("it is below ten")
        if action.number == self._wanted:
            return GuessObservation(hint="right", reward=1.0, done=True)
        return GuessObservation(hint="higher" if action.number < self._wanted else "lower", reward=0.0)

    @property
    def state(self) -> State:
        return State()


APPS = {
    "tally": (Tally, CallToolAction, CallToolObservation),
    "guess": (Guess, GuessAction, GuessObservation),
}
app = create_app(*APPS[sys.argv[1]], max_concurrent_envs=int(sys.argv[3]))
uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
