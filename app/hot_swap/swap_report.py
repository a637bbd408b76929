"""The record of a swap in the audit log: the weights, the duration, and the verification of each model server.
Of a hosted model, the endpoint that answered.
"""

import msgspec


class ReplicaSwapReport(msgspec.Struct, frozen=True, kw_only=True):
    """The verification of one model server. Differences are root mean squares over the tokens of the probe."""

    url: str
    load_seconds: float
    probe_seconds: float
    probed: bool  # against the trainer's logprobs; False: against those of the first model server
    error: float  # |served adapter - trained adapter|
    distance: float  # |served adapter - served base|
    noise: float  # |served base - trained base|


class SwapReport(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    seconds: float  # of the whole swap
    replicas: tuple[ReplicaSwapReport, ...] = ()
    absent: tuple[str, ...] = ()  # servers that were out: each is verified before it gets requests again
    endpoint: str = ""
