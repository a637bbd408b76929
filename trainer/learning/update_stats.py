"""The statistics that one update reports."""

import msgspec


class UpdateStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one update: loss, norm, clipping and KL of its last optimizer step, the rest from before its
    first.
    """

    loss: float
    grad_norm: float  # before clipping
    clip_fraction: float  # of the sampled tokens: those whose gradient was clipped
    ratio_mean: float  # p / p of the policy that sampled, as its engine reported it
    ratio_max: float
    kl_to_engine: float  # estimated KL from the engine that sampled: almost 0 without stale samples
    kl_to_start: float  # KL from the policy at the start of the run: half the mean square of log (p / p_ref)
    kl_of_step: float  # KL from the policy that sampled, after the step: what `max_kl` limits
    entropy: float  # of a sampled token, in nats: estimated by its -log p
    tokens: int  # sampled ones that were learned from
    read_tokens: int  # these and the context between them
    samples: int  # sequences of tokens
