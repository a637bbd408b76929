"""Samples a turn of the policy: until a stop token or, where the profile has stop strings, until its code ends."""

import zlib

import msgspec

from app.agent.action import is_closed
from app.agent.chat import Chat, Prompt
from app.engine.protocol import Completion, Engine, Sampling


async def complete_turn(engine: Engine, prompt: Prompt, model: str, sampling: Sampling, chat: Chat) -> Completion:
    """The ids and logprobs are those that the engine sampled. Raises EngineError.

    A fence alone on its line may also open a block, close one of another language, or be a part of a thought. Then
    the generation goes on where it ended.
    """
    whole, next_part = Completion((), (), "length"), sampling
    while next_part.max_tokens > 0:
        part = await engine.complete((*prompt.ids, *whole.ids), model=model, sampling=next_part)
        whole = Completion(whole.ids + part.ids, whole.logprobs + part.logprobs, part.finish)
        text = prompt.opened + chat.text_of(whole.ids)
        if not _stopped_by_string(part, sampling, chat) or is_closed(text):
            return whole
        seed = None if sampling.seed is None else zlib.crc32(f"{sampling.seed} {len(whole.ids)}".encode())
        room = sampling.max_tokens - len(whole.ids)
        next_part = msgspec.structs.replace(sampling, max_tokens=room, seed=seed)
    return msgspec.structs.replace(whole, finish="length")


def _stopped_by_string(part: Completion, sampling: Sampling, chat: Chat) -> bool:
    if part.finish != "stop" or not part.ids or part.ids[-1] in sampling.stop_token_ids:
        return False
    text = chat.text_of(part.ids)
    return any(stop in text for stop in sampling.stop_strings)
