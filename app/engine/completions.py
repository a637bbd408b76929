"""A generation as vLLM's `/v1/completions` is asked for it, and its answer, checked."""

from typing import Any

from app.engine.protocol import Completion, Sampling
from app.engine.vllm_api import Answer, Choice, NonsenseError, ReplicaError

_PLAIN = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sent always: vLLM would otherwise take these from the model's generation_config.json."""


def request_for(prompt: list[int], model: str, sampling: Sampling) -> dict[str, Any]:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "stop_token_ids": list(sampling.stop_token_ids),
        "logprobs": 0,  # of the sampled token alone
        "return_token_ids": True,
        **_PLAIN,
    }
    return body | {"allowed_token_ids": list(sampling.allowed_token_ids)} if sampling.allowed_token_ids else body


def completion_of(answer: Answer, prompt: list[int], vocabulary: int, url: str) -> Completion:
    """Raises NonsenseError where it is not the answer to this prompt, or not whole."""
    if len(answer.choices) != 1:
        raise NonsenseError(f"{url} gave {len(answer.choices)} answers to one prompt.")
    choice = answer.choices[0]
    ids, logprobs = tuple(_ids(choice, prompt, url)), tuple(choice.logprobs.token_logprobs)
    if len(ids) != len(logprobs):
        raise NonsenseError(f"{url} gave {len(ids)} tokens but {len(logprobs)} logprobs.")
    if not all(0 <= token < vocabulary for token in ids):
        raise NonsenseError(f"{url} gave token ids that the base model does not have: does it serve another one?")
    if choice.finish_reason not in {"stop", "length"}:
        raise ReplicaError(f"{url} ended the generation early ({choice.finish_reason}): try again.")
    return Completion(ids, logprobs, choice.finish_reason)


def _ids(choice: Choice, prompt: list[int], url: str) -> list[int]:
    if choice.token_ids is None or choice.prompt_token_ids is None:
        raise NonsenseError(
            f"{url} gave no token ids: it must know return_token_ids, as vLLM 0.10.2 and later do."
        )
    if choice.prompt_token_ids != prompt:
        raise NonsenseError(f"{url} answered another prompt than the one it was sent: restart it.")
    return choice.token_ids
