"""The requirements of a deployment on a model server, and the capabilities a server has proved."""

from pathlib import Path

import msgspec

PROBE_PREFIX = "capability-"  # of the names of adapters that are loaded only to probe a server


class ServerRequirements(msgspec.Struct, frozen=True, kw_only=True):
    """A field left at its default requires nothing."""

    adapters: Path | None = None  # the adapter directory, which the server must see at the same path
    model: Path | None = None  # the base model's directory, for the shapes of the probe adapter
    rank: int = 0  # of the deployment's adapters
    vocabulary: int = 2**31  # upper bound of token ids, exclusive
    loras: int = 1  # adapters that must be usable at the same time


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The capabilities of a server beyond those that all need: token ids, raw logprobs, loading at runtime."""

    url: str
    server: str = "vLLM"
    version: str
    max_model_len: int | None
    max_loras: int | None  # None: not reported yet
    rank: int | None  # an adapter of this rank was loaded and unloaded; None: not probed
    note: str = ""  # why the rank was not probed
