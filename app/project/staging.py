"""Where trials of a project's tasks may act: other servers of its APIs than those that its tasks call."""

from typing import Annotated

import msgspec

SecretName = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]


class StagingApi(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A second server of one API. Nothing of its first one is sent there, neither tokens nor bound secrets."""

    server: Annotated[str, msgspec.Meta(max_length=2_000, pattern=r"^https?://[^\s{}/]+(/\S*)?(?!\n)$")]
    """Its base URL, of another origin than those that tasks call; with the variables of the document, if any."""
    token_secret: SecretName | None = None
    """The stored secret that is sent as its bearer token."""
    secrets: Annotated[dict[SecretName, SecretName], msgspec.Meta(max_length=100)] = {}
    """For each secret that is bound to a parameter of the API, the stored secret that staging gets instead."""
    reset: Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*(?!\n)$")] | None = None
    """An operation of the API without arguments, called before each trial to restore what trials change."""
