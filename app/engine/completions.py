"""Builds requests to vLLM's `/v1/completions`, and parses and checks the replies."""

from typing import Any

from app.engine.protocol import Completion, Sampling
from app.engine.vllm_api import CompletionReply, InvalidResponseError, ReplicaError, ReplyChoice

_PLAIN = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Always sent: vLLM would otherwise take these from the model's generation_config.json."""


def build_request(prompt: list[int], model: str, sampling: Sampling) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "stop_token_ids": list(sampling.stop_token_ids),
        "logprobs": 0,  # of the sampled token only
        "return_token_ids": True,
        **_PLAIN,
    }
    if sampling.stop_strings:
        body["stop"] = list(sampling.stop_strings)
    if sampling.allowed_token_ids:
        body["allowed_token_ids"] = list(sampling.allowed_token_ids)
    return body


def parse_completion(answer: CompletionReply, prompt: list[int], vocabulary: int, url: str) -> Completion:
    """Raises InvalidResponseError for a reply to another prompt, or an incomplete one."""
    if len(answer.choices) != 1:
        raise InvalidResponseError(f"{url} returned {len(answer.choices)} choices for one prompt.")
    choice = answer.choices[0]
    ids, logprobs = tuple(_ids(choice, prompt, url)), tuple(choice.logprobs.token_logprobs)
    if len(ids) != len(logprobs):
        raise InvalidResponseError(f"{url} returned {len(ids)} tokens but {len(logprobs)} logprobs.")
    if not all(0 <= token < vocabulary for token in ids):
        raise InvalidResponseError(
            f"{url} returned token ids outside the base model's vocabulary: does it serve another model?"
        )
    if choice.finish_reason not in {"stop", "length"}:
        raise ReplicaError(f"{url} ended the generation early ({choice.finish_reason}): try again.")
    return Completion(ids, logprobs, choice.finish_reason)


def _ids(choice: ReplyChoice, prompt: list[int], url: str) -> list[int]:
    if choice.token_ids is None or choice.prompt_token_ids is None:
        raise InvalidResponseError(
            f"{url} returned no token ids: it must support return_token_ids, as vLLM 0.10.2 and later do."
        )
    if choice.prompt_token_ids != prompt:
        raise InvalidResponseError(f"{url} answered another prompt than the one sent: restart it.")
    return choice.token_ids
