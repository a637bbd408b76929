"""Opens the hosted models that are policies of releases: the one place that makes their client."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

from app.engine.hosted.chat_model import ChatModel

OpenHosted: TypeAlias = Callable[[str], AbstractAsyncContextManager[ChatModel]]
"""Opens the model of a policy's name. Raises EngineRefusalError if its entry is gone."""
