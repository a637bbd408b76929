"""Convert an expert's text to the tokens that the policy would have sampled for it."""

import unicodedata

from app.engine.tokenizer import ChatTokenizer, Message
from app.errors import InvalidError, ModelError

_PROBE = "probe"


class UntokenizableError(InvalidError):
    """The policy's tokenizer cannot represent a text: trained on it, the policy would learn a different text."""


def answer_ids(tokenizer: ChatTokenizer, text: str, *, ended: bool = True) -> tuple[int, ...]:
    """The tokens of one answer, with its end token unless it was cut off. Raises UntokenizableError."""
    reserved = next((token for token in _reserved(tokenizer) if token in text), None)
    if reserved is not None:
        raise UntokenizableError(f"an answer contains {reserved}, which is reserved for the model's chat template")
    ids = tokenizer.encode(text)
    back = tokenizer.decode(ids)
    if _plain(back) != _plain(text):
        raise UntokenizableError(
            f"the model's tokenizer cannot represent {_differing(text, back)!r}: use chats that fit the model"
        )
    return (*ids, end_of_answer(tokenizer)) if ended else tuple(ids)


def end_of_answer(tokenizer: ChatTokenizer) -> int:
    """The token that the chat template writes after an answer or, if it writes none, the model's end of text.

    Raises ModelError where there is neither.
    """
    messages = [Message("user", "?"), Message("assistant", _PROBE)]
    tail = tokenizer.render(messages, generate=False).rpartition(_PROBE)[2].lstrip()
    ids = [*tokenizer.encode(tail)[:1], *tokenizer.eos_ids]
    end = next((token for token in ids if token in tokenizer.stop_ids), None)
    if end is None:
        raise ModelError("the model has no token that ends an answer: set eos_token_id in its config.json")
    return end


def _reserved(tokenizer: ChatTokenizer) -> list[str]:
    added = tokenizer.tokenizer.get_added_tokens_decoder().values()
    return [token.content for token in added if token.special]


def _plain(text: str) -> str:
    """The text without the differences that many tokenizers normalize away: letter forms and white space."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def _differing(text: str, back: str) -> str:
    """The first word that was not decoded as it was."""
    return next((word for word in text.split() if _plain(word) not in _plain(back)), text[:40])
