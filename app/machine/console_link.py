"""The link that signs the person at this machine in to the console, as the first admin key."""

from urllib.parse import urlencode

from app.db import keys, sign_ins
from app.db.database import open_database
from app.errors import SettingError
from app.ports import base_url
from app.security.admin_key_file import admin_key_file, read_admin_key
from app.settings import Settings


async def console_link(url: str, settings: Settings) -> str:
    """A new link, good once and for minutes. `url` is the database.

    Raises SettingError if the data directory has no valid admin key.
    """
    async with open_database(url) as database, database.sessions.begin() as session:
        kept = read_admin_key(settings.data_dir)
        found = await keys.by_secret(session, kept) if kept else None
        if found is None:
            file = admin_key_file(settings.data_dir.absolute())
            raise SettingError(
                f"{file} has no valid key: sign in with one at {_address(settings)}; `sage keys create-admin` "
                "creates one"
            )
        secret = await sign_ins.offer_link(session, found[0].id)
    return f"{_address(settings)}/sign-in?{urlencode({'link': secret})}"


def _address(settings: Settings) -> str:
    own = settings.public_url.rstrip("/") or base_url(settings.host, settings.port)
    return f"{own}/console"
