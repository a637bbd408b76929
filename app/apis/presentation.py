"""How a project presents the operations of a document to its agent. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

from app.apis.catalog import App
from app.apis.naming import Naming, keys_of, known_names, name_operations


class Presentation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Kept with an API, and part of a release as its document is.

    APIs of earlier versions have none, and so keep the names of the document.
    """

    naming: Naming = "operation_id"
    names: dict[str, str] = {}  # of operations that would have other ones in this version of the document, by key


AS_WRITTEN: Final = Presentation()


def present(app: App, presentation: Presentation) -> App:
    """The app under the names that its agent knows."""
    if presentation == AS_WRITTEN:
        return app
    operations = list(app.operations.values())
    names = name_operations(app, presentation.naming, presentation.names)
    renamed = {
        name: each if name == each.name else msgspec.structs.replace(each, name=name, former_names=(each.name,))
        for name, each in zip(names, operations, strict=True)
    }
    return msgspec.structs.replace(app, operations=renamed, typed=presentation.naming == "readable")


def keep_names(app: App, presentation: Presentation, names: Mapping[str, str]) -> Presentation:
    """The presentation for a new version of a document, of which an earlier one had `names`, by key or by place.

    `app` is as parsed.
    """
    operations = list(app.operations.values())
    keys, known = keys_of(operations), known_names(names, operations)
    kept: dict[str, str] = {}
    while True:  # a name that is kept may set another one free
        given = zip(keys, name_operations(app, presentation.naming, kept), strict=True)
        differing = {key: known[key] for key, name in given if known.get(key, name) != name}
        if not differing:
            return msgspec.structs.replace(presentation, names=kept)
        kept |= differing
