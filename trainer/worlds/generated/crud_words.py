"""The words from which the makers of an app chose theirs."""

WORDS: dict[str, tuple[str, ...]] = {
    "list": ("list", "get all", "search", "fetch", "get", "browse", "find"),
    "show": ("get", "show", "read", "view", "fetch"),
    "create": ("create", "add", "new", "post", "register"),
    "update": ("update", "edit", "change", "modify", "set"),
    "delete": ("delete", "remove", "drop", "destroy"),
    "info": ("get system info", "show status", "server version", "get about", "read health"),
    "version": ("version", "release", "build", "server version"),
    "id": ("id", "uuid", "key", "id", "uid"),
    "title": ("title", "name", "title", "display name", "subject"),
    "link": ("url", "link", "url", "address", "web page"),
    "data": ("items", "results", "data", "entries"),
    "group": ("attributes", "details", "fields", "properties"),
    "page": ("page", "page number"),
    "header": ("X-Api-Key", "X-Token", "access_token", "X-Auth-Token"),
    "error": ("error", "message", "detail"),
}
OTHERS = (
    "GET {noun} history", "POST import {nouns}", "POST export {nouns}", "GET {noun} comments",
    "POST {noun} share link", "GET {nouns} settings", "GET {nouns} report", "POST {nouns} sync",
    "GET {noun} permissions", "GET {nouns} feed",
)  # fmt: skip
OPTIONS = ("sort by", "order", "verbose", "with archived", "locale", "expand")  # of lists
SPARE_FIELDS = (
    "proxy", "time zone", "interval", "retries", "webhook", "http verb", "headers", "batch size", "footer",
    "silent", "priority rank", "max length", "cc list", "external key", "icon", "folder path", "sort index",
    "owner group",
    *(f"{what} {part}" for what in ("alert", "sync", "cache", "layout", "export", "quota")
      for part in ("body", "format", "mode", "limit", "enabled", "threshold", "text", "ids")),
)  # fmt: skip
STATUS = (
    "queue size", "workers", "region", "disk free", "new version available", "base url", "users", "mode",
    "cluster", "log level",
)  # fmt: skip
QUALIFIERS = (
    "page", "web", "team", "shared", "daily", "project", "customer", "site", "user", "group", "service", "saved",
)  # fmt: skip
TAKEN = frozenset(word for role in ("list", "show", "create", "update", "delete") for word in WORDS[role])
"""Verbs for what every collection can do."""
