"""Why a served task is not learned from, and what to do about it."""

from enum import StrEnum


class DropReason(StrEnum):
    """Reasons for dropping a task; the first that applies is counted."""

    CANCELLED = "cancelled"
    FAILED = "failed"
    NOT_KEPT = "not_kept"  # its trajectory was deleted
    UNSCORED = "unscored"
    UNPROVEN_JUDGE = "unproven_judge"  # scored by a judge that is not known to decide as people do
    LEARNED = "learned"  # the policy that serves could learn from it already
    HELD_OUT = "held_out"  # candidates are examined on it, or on one that is like it
    STALE = "stale"  # sampled by a release too many releases ago
    CONVERSATION = "conversation"  # without a scenario, its instruction alone does not say what it is like
    SECRET = "secret"  # the policy read or wrote a secret, so the trajectory has no tokens
    OTHER_BASE = "other_base"  # sampled by another base model
    OTHER_PROMPT = "other_prompt"  # sampled under another prompt than the one that is served, or under several
    HOSTED = "hosted"  # a hosted model has no token ids and logprobs
    EMPTY = "empty"  # the policy sampled no token
    BAD_LOGPROBS = "bad_logprobs"  # not finite
    WRONG_TEMPERATURE = "wrong_temperature"  # not 1, so the logprobs are not those of the sampling distribution
    KEPT_BACK = "kept_back"  # exploring, it was kept from a call that is not open to that
    NO_PEERS = "no_peers"  # no other task to compare it with
    EQUAL_REWARDS = "equal_rewards"  # its whole group earned the same
    BEYOND_STEPS = "beyond_steps"  # the run has no step left for its group
    UNSUCCESSFUL = "unsuccessful"  # not worth imitating
    CUT_OFF = "cut_off"  # a turn hit the token limit or had no code, so it is no example
    UNFIT = "unfit"  # what a hosted model wrote is longer than the model's context, or not in its vocabulary
    SURPLUS = "surplus"  # others of its scenario succeeded with fewer tokens


ADVICE = {
    DropReason.CANCELLED: "wait for tasks that are not cancelled",
    DropReason.FAILED: "look at the `failure` of the tasks",
    DropReason.NOT_KEPT: "raise `keep_trajectories`, a setting of the project",
    DropReason.UNSCORED: "submit tasks with a `check`, or score them (POST /v1/feedback with their `task_id`)",
    DropReason.UNPROVEN_JUDGE: (
        "score tasks that the judge has scored (GET /v1/feedback/wanted), until GET /v1/judge/agreement says that "
        "it is trusted, or lower `judge_agreement`, a setting of the project"
    ),
    DropReason.LEARNED: "wait for new tasks, or raise both `replay` and `max_staleness`",
    DropReason.HELD_OUT: "lower `holdout_percent`, a setting of the project, or make its exams smaller",
    DropReason.STALE: "raise `max_staleness`, or wait for tasks of the active release",
    DropReason.CONVERSATION: "give tasks that follow a conversation a `scenario`",
    DropReason.SECRET: "fill in the secrets of the APIs with `bind`, so that the policy does not meet them",
    DropReason.OTHER_BASE: "wait for tasks of the model that is being served",
    DropReason.OTHER_PROMPT: "wait for tasks of the version, or the prompt profile, that serves now",
    DropReason.HOSTED: (
        "a hosted model has no token ids and logprobs: let runs of kind `sft` learn from its tasks, or serve a "
        "release of the model server"
    ),
    DropReason.EMPTY: "look at the trajectories: the model generated nothing",
    DropReason.BAD_LOGPROBS: "check the model server: it reported logprobs that are not finite",
    DropReason.WRONG_TEMPERATURE: (
        "let more tasks explore: raise explore_percent, open operations to exploration or set explore_writes, or "
        "serve with SAGE_TEMPERATURE=1"
    ),
    DropReason.KEPT_BACK: "open to exploration what such tasks change, or nothing of it",
    DropReason.NO_PEERS: "serve several tasks of one kind, or give them the same `scenario`",
    DropReason.EQUAL_REWARDS: (
        "wait for tasks that succeed as well as fail; at temperature 0 identical tasks give identical rollouts"
    ),
    DropReason.BEYOND_STEPS: "raise `steps` or `pairs`",
    DropReason.CUT_OFF: "raise SAGE_MAX_TURN_TOKENS, so that answers are not cut off",
    DropReason.UNFIT: "train a model with a longer context, or lower SAGE_MAX_TURNS",
    DropReason.UNSUCCESSFUL: "wait for tasks that succeed, or train on `data` from elsewhere",
}
"""What to do where a reason left nothing to learn from. `SURPLUS` needs none: others were kept."""
