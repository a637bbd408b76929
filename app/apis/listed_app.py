"""An app as prompts list it. Pure."""

from weakref import WeakKeyDictionary

import msgspec

from app.apis.builtin import COMPLETE_TASK
from app.apis.catalog import App, Catalog
from app.apis.short_signature import SignatureWords, page_of_signatures

_SIGNATURE_CHARS = 5_400  # of one app: at most some 2,000 tokens, of 2.7 characters
_LISTED: WeakKeyDictionary[App, "ListedApp"] = WeakKeyDictionary()


class ListedApp(msgspec.Struct, frozen=True):
    """`signatures` are those of all operations but `complete_task`, a line each, shortened where need be; None if
    they are too many.

    They do not depend on the task, so that tasks of a project share this part of their prompts.
    """

    name: str
    description: str
    signatures: tuple[str, ...] | None = None

    @classmethod
    def of(cls, app: App) -> "ListedApp":
        if app not in _LISTED:
            operations = [each for each in app.operations.values() if each.api != COMPLETE_TASK.api]
            lines = page_of_signatures(app, operations, SignatureWords(app, ""), _SIGNATURE_CHARS).lines
            _LISTED[app] = cls(app.name, app.description, tuple(lines) if len(lines) == len(operations) else None)
        return _LISTED[app]

    def about(self, chars: int) -> str:
        """What the app is for: the first paragraph of its description that is no heading, cut at a word.

        >>> ListedApp("pages", "# Pages API\\n\\nKeeps what is read.\\n\\n## Log-in").about(60)  # Markdown
        'Keeps what is read'
        """
        about = " ".join(_first_paragraph(self.description).split()).rstrip(".")
        if len(about) <= chars:
            return about
        start = about[:chars]
        return f"{start.rpartition(' ')[0] or start} ..."


def listed_apps(catalog: Catalog) -> list[ListedApp]:
    return [ListedApp.of(app) for app in catalog.apps.values()]


def _first_paragraph(markdown: str) -> str:
    """The first that is not a heading, or else the first heading."""
    lines = markdown.strip().splitlines()
    text = "\n".join(line.strip() for line in lines if not line.startswith("#")).strip()
    return text.partition("\n\n")[0] or "".join(lines[:1]).lstrip("# ")
