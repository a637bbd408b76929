"""What a deployment needs of a model server, and what a server proved that it can do."""

from pathlib import Path

import msgspec

TRIED = "capability-"  # so begin the names of adapters that are loaded to see whether a server can


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What is left out is not asked for."""

    adapters: Path | None = None  # the directory that the server must see at the same path
    model: Path | None = None  # the base, for the shapes of an adapter to try with
    rank: int = 0  # of the deployment's adapters
    vocabulary: int = 2**31  # token ids are below it
    loras: int = 1  # adapters that answer at the same time


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Of one server. It returns token ids and raw logprobs, and loads adapters while it runs, or there is none."""

    url: str
    version: str
    max_model_len: int | None
    max_loras: int | None  # None: it has not told yet
    rank: int | None  # an adapter of this rank was loaded and unloaded; None: not probed
    note: str = ""  # why not
