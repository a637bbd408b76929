"""How much work one API document may cause: a small one can refer to its parts so that they unfold endlessly."""

from app.base.errors import ApiDocumentError

_STEPS = 3_000_000  # of about a microsecond; a document of 14 MB and 1,100 operations takes half of them
_CHARS_PER_STEP = 64


class DocumentSizeError(ApiDocumentError):
    """The whole document takes too much."""


class DocumentBudget:
    """Counts what parsing one document costs: the members of schemas, each time they are resolved, and texts."""

    def __init__(self, steps: int = _STEPS) -> None:
        self._left = steps

    def spend(self, steps: int, where: str) -> None:
        """Raises DocumentSizeError with the place where the document went too far."""
        self._left -= steps
        if self._left < 0:
            raise DocumentSizeError(
                f"{where}: the document is too large here: its references repeat their targets"
            )

    def spend_text(self, text: str, where: str) -> None:
        self.spend(len(text) // _CHARS_PER_STEP, where)
