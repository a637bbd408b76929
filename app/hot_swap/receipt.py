"""What a swap leaves in the audit log: which weights, how long it took, and what each model server proved."""

import msgspec


class ReplicaReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model server. The figures are the greatest differences of a logprob over the tokens of the probe."""

    url: str
    load_seconds: float
    probe_seconds: float
    probed: bool  # against the trainer's figures; False: against those of the first model server
    error: float  # |served adapter - trained adapter|
    distance: float  # |served adapter - served base|
    noise: float  # |served base - trained base|


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    seconds: float  # of the whole swap
    replicas: tuple[ReplicaReceipt, ...] = ()
    absent: tuple[str, ...] = ()  # servers that were out: each proves it before it is asked again
