"""A teacher's text as the tokens in which the policy would have said it."""

import unicodedata

from app.engine.tokenizer import ChatTokenizer, Message
from app.errors import InvalidError, ModelError

_PROBE = "probe"


class UnsayableError(InvalidError):
    """Text that the policy's tokenizer cannot say: it would teach the policy something else."""


def answer_ids(tokenizer: ChatTokenizer, text: str, *, ended: bool = True) -> tuple[int, ...]:
    """The tokens of one answer, with the one that ends it unless it was cut off.

    Raises UnsayableError.
    """
    reserved = next((token for token in _reserved(tokenizer) if token in text), None)
    if reserved is not None:
        raise UnsayableError(f"an answer contains {reserved}, which the model's chat template keeps for itself")
    ids = tokenizer.encode(text)
    back = tokenizer.decode(ids)
    if _plain(back) != _plain(text):
        raise UnsayableError(
            f"the model's tokenizer cannot say {_differing(text, back)!r}: take conversations that fit the model"
        )
    return (*ids, end_of_answer(tokenizer)) if ended else tuple(ids)


def end_of_answer(tokenizer: ChatTokenizer) -> int:
    """The token that the chat template writes after an answer; where it writes none, the model's end of text.

    Raises ModelError where there is neither.
    """
    messages = [Message("user", "?"), Message("assistant", _PROBE)]
    tail = tokenizer.render(messages, generate=False).rpartition(_PROBE)[2].lstrip()
    ids = [*tokenizer.encode(tail)[:1], *tokenizer.eos_ids]
    found = next((token for token in ids if token in tokenizer.stop_ids), None)
    if found is None:
        raise ModelError("the model names no token that ends an answer: give its config.json an eos_token_id")
    return found


def _reserved(tokenizer: ChatTokenizer) -> list[str]:
    added = tokenizer.tokenizer.get_added_tokens_decoder().values()
    return [token.content for token in added if token.special]


def _plain(text: str) -> str:
    """What tokenizers keep: many normalise letters and white space."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def _differing(text: str, back: str) -> str:
    """The first word that did not come back."""
    return next((word for word in text.split() if _plain(word) not in _plain(back)), text[:40])
