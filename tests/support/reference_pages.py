"""The manual's reference pages, as the code has them. `make manual` writes them."""

from app.web.manual import DIRECTORY
from tests.support.rest_reference import rest_page
from tests.support.settings_reference import settings_page


def reference_pages() -> dict[str, str]:
    """The text by file name."""
    return {"settings.md": settings_page(), "rest.md": rest_page()}


if __name__ == "__main__":
    for name, text in reference_pages().items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")
