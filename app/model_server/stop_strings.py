"""Ends a generation at the token that completes a given text."""

from collections.abc import Sequence

from app.engine.tokenizer import ChatTokenizer


class StopStrings:
    """The texts that end one generation."""

    def __init__(self, tokenizer: ChatTokenizer, texts: Sequence[str]) -> None:
        self._tokenizer, self._texts = tokenizer, texts
        self._reach = max(len(text.encode()) for text in texts)  # tokens: each has a byte of the text, or more

    def completed(self, ids: Sequence[int]) -> str:
        """The text that the last of these ids completes; "" if none does."""
        tail = self._tokenizer.decode(ids[-self._reach :])
        return next((text for text in self._texts if text in tail), "")
