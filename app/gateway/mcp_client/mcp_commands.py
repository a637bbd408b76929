"""MCP servers that are commands of this machine: those that the operator names, each in bubblewrap."""

import shutil
import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from mcp.client.stdio import StdioServerParameters, stdio_client

from app.base.errors import HostError, SettingError

SCHEME: Final = "stdio:"
_SYSTEM: Final = ("/usr", "/bin", "/lib", "/lib64", "/etc/alternatives", "/etc/ssl")
_TMP: Final = "/tmp"  # of the sandbox: an empty one in memory


class McpCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command that speaks MCP on its standard input and output, and the paths that it may use."""

    command: list[str]
    readable: list[str] = []
    writable: list[str] = []
    environment: dict[str, str] = {}
    network: bool = False  # to any address


def read_commands(path: str) -> dict[str, McpCommand]:
    """The commands of a TOML file, by name; none without a file. Raises SettingError."""
    if not path:
        return {}
    try:
        commands = msgspec.convert(tomllib.loads(Path(path).read_text()), dict[str, McpCommand])
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise SettingError(f"SAGE_MCP_COMMANDS={path!r}: {error}") from error
    if empty := [name for name, each in commands.items() if not each.command]:
        raise SettingError(f"SAGE_MCP_COMMANDS={path!r}: {empty[0]}: `command` is empty")
    return commands


@asynccontextmanager
async def command_streams(name: str, commands: Mapping[str, McpCommand]) -> AsyncIterator[tuple[Any, Any]]:
    """The SDK's streams of a new process. Raises HostError if it is not permitted, or cannot be confined."""
    if name not in commands:
        permitted = ", ".join(sorted(commands)) or "none"
        raise HostError("ApiError", f"{SCHEME}{name} is not in SAGE_MCP_COMMANDS, which names {permitted}")
    words = _confined(commands[name])
    with open("/dev/null", "w") as errors:  # noqa: ASYNC230 - it is a device
        async with stdio_client(StdioServerParameters(command=words[0], args=words[1:]), errlog=errors) as streams:
            yield streams


def _confined(server: McpCommand) -> list[str]:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise HostError("ApiError", "MCP servers run as commands only inside bubblewrap: install bwrap")
    binds = [word for path in _SYSTEM for word in ("--ro-bind-try", path, path)]
    binds += [word for path in server.readable for word in ("--ro-bind", path, path)]
    binds += [word for path in server.writable for word in ("--bind", path, path)]
    names = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": _TMP, **server.environment}
    environment = [word for name, value in names.items() for word in ("--setenv", name, value)]
    network = ("--share-net", "--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf") if server.network else ()
    return [
        bwrap,
        *("--unshare-all", *network, "--uid", "65534", "--gid", "65534", "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session", "--clearenv"),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", _TMP),
        *binds,
        *environment,
        *("--chdir", "/", "--", *server.command),
    ]
