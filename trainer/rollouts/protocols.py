"""The interfaces that rollouts depend on: an engine that loads adapters, and a factory of skill libraries."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeAlias

from app.engine.protocol import Engine
from app.skills.in_memory_library import InMemoryLibrary


class AdapterEngine(Engine, Protocol):
    """An engine that loads adapters: the client of the model servers, or the trainer's own engine."""

    async def load_adapter(self, name: str, path: Path) -> None: ...

    async def unload_adapter(self, name: str) -> None: ...


LibraryFactory: TypeAlias = Callable[[], InMemoryLibrary]
"""Makes an empty library for one chain."""
