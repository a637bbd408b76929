"""Where trials of a project's tasks may act: other servers of its APIs than those that its tasks call."""

from typing import Annotated, Literal

import msgspec

from app.project.webhook import is_callable_url, without_path

SecretName = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]


_Text = Annotated[str, msgspec.Meta(max_length=10_000, pattern=r"^[^\x00\r\n]*(?!\n)$")]
_Name = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\s\x00;=,]+(?!\n)$")]
_FileName = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*(?!\n)$")]
_Reference = Annotated[str, msgspec.Meta(max_length=210, pattern=r"^secret:[^\x00\n]+(?!\n)$")]


class StagingCredential(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What staging gets for one security scheme, as in `credentials` of the API; secrets as `secret:NAME`.

    An API key or a token is a `value`. For a scheme of OAuth it is a token that lasts: none is asked for.
    """

    value: _Reference | None = None
    """Key or token, as `secret:NAME`."""
    username: _Text | None = None
    """Of `basic`, with `password`."""
    password: _Reference | None = None
    """As `secret:NAME`."""
    certificate: _FileName | None = None
    """A file in `SAGE_CLIENT_CERTIFICATES`: chain and key in PEM."""
    place: Literal["header", "query", "cookie"] | None = None
    """Of a scheme that the document does not declare, with `name`."""
    name: _Name | None = None
    """Name of that header, parameter or cookie."""
    prefix: _Name | None = None
    """What stands before the value there, such as `Token`."""


class StagingApi(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A second server of one API. Nothing of its first one is sent there, neither tokens nor bound secrets."""

    server: Annotated[str, msgspec.Meta(max_length=2_000, pattern=r"^https?://[^\s{}/]+(/\S*)?(?!\n)$")]
    """Its base URL, of another origin than those that tasks call; with the variables of the document, if any."""
    token_secret: SecretName | None = None
    """The stored secret that is sent as its bearer token."""
    credentials: Annotated[dict[SecretName, StagingCredential], msgspec.Meta(max_length=50)] = {}
    """By the name of a security scheme. Nothing is needed where staging asks for nothing."""
    secrets: Annotated[dict[SecretName, SecretName], msgspec.Meta(max_length=100)] = {}
    """For each secret that is bound to a parameter of the API, the stored secret that staging gets instead."""
    reset: Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*(?!\n)$")] | None = None
    """An operation of the API without arguments, called before each trial to restore what trials change."""
    reset_url: Annotated[str, msgspec.Meta(max_length=2_000, pattern=r"^https?://")] | None = None
    """Receives a signed POST before each trial instead, and answers once what trials change is restored."""
    reset_secret: SecretName | None = None
    """The stored secret `whsec_<base64>` that signs it, as messages to a webhook are."""
    stateless: bool = False
    """Whether nothing needs to be restored, as what one trial changes there concerns no other."""

    def __post_init__(self) -> None:
        if self.reset is not None and self.reset_url is not None:
            raise ValueError("name either `reset` or `reset_url`")
        if self.stateless and (self.reset or self.reset_url):
            raise ValueError("`stateless` needs no reset: leave one of them out")
        if (self.reset_url is None) != (self.reset_secret is None):
            raise ValueError("`reset_url` and `reset_secret` need each other: the POST is signed with the secret")
        for name, url in (("server", self.server), ("reset_url", self.reset_url)):
            if url is not None and not is_callable_url(url):
                raise ValueError(f"`{name}`: write http://host/path or https://, without a user or fragment")

    @property
    def is_restored(self) -> bool:
        """Whether no trial meets what another one changed."""
        return self.stateless or self.reset is not None or self.reset_url is not None

    def masked(self) -> "StagingApi":
        """Without the path and query of `reset_url`, which may hold a token."""
        return msgspec.structs.replace(self, reset_url=self.reset_url and without_path(self.reset_url))
