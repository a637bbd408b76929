"""The recipe of a work directory, which refuses to mix the results of two recipes."""

from pathlib import Path
from typing import TypeVar

import msgspec

from app.errors import InvalidError
from trainer.atomic_write import write_atomically

_Recipe = TypeVar("_Recipe", bound=msgspec.Struct)
_FILE = "recipe.json"


def claim_directory(work: Path, recipe: _Recipe) -> None:
    """Mark `work` as this recipe's. Raises InvalidError if it is another's: their results would mix silently."""
    path = work / _FILE
    if not path.exists():
        write_atomically(msgspec.json.encode(recipe), path)
        return
    try:
        begun = msgspec.structs.asdict(msgspec.json.decode(path.read_bytes(), type=type(recipe)))
    except msgspec.ValidationError as error:
        raise InvalidError(
            f"{work} was begun by a build of another kind, of the seed policy or of an adapter: name another "
            "directory with --work"
        ) from error
    other = [name for name, value in msgspec.structs.asdict(recipe).items() if begun[name] != value]
    if other:
        was = ", ".join(f"{name}={begun[name]}" for name in other)
        raise InvalidError(f"{work} was begun with {was}: use the same values, or another work directory")
