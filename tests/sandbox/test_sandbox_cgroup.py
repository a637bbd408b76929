"""Control groups of projects: the files written, and what is said where they cannot be."""

import os
from pathlib import Path

import pytest

from app.base.errors import SandboxError
from app.base.values import Json
from app.sandbox.cgroup import ControlGroups, SharedLimits, UnusableCgroupError
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import SessionLimits

_LIMITS = SharedLimits(memory_bytes=24 << 20)


def _mount(tmp_path: Path, own: str = "", controllers: str = "cpu memory pids", enabled: str = "") -> Path:
    """A directory with the files that the kernel shows of a control group."""
    mount = tmp_path / "cgroup"
    group = mount / own
    group.mkdir(parents=True)
    (mount / "cgroup.controllers").write_text(controllers)
    (group / "cgroup.controllers").write_text(controllers)
    (group / "cgroup.subtree_control").write_text(enabled)
    (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (tmp_path / "membership").write_text(f"12:cpu:/x\n0::/{own}\n")
    return mount


def _find(tmp_path: Path) -> ControlGroups:
    return ControlGroups.find(_LIMITS, mount=tmp_path / "cgroup", membership=tmp_path / "membership")


def test_a_process_is_moved_into_a_group_with_the_limits_of_its_project(tmp_path: Path) -> None:
    mount = _mount(tmp_path)
    _find(tmp_path).place("desk", 4711)
    group = mount / "sage-project-desk"
    assert (group / "memory.max").read_text() == str(24 << 20)
    assert (group / "memory.swap.max").read_text() == "0"
    assert (group / "pids.max").read_text() == "3"
    assert (group / "cgroup.procs").read_text() == "4711"


def test_a_group_that_an_earlier_server_left_gets_the_limits_of_this_one(tmp_path: Path) -> None:
    group = _mount(tmp_path) / "sage-project-desk"
    group.mkdir()
    (group / "memory.max").write_text("1")
    _find(tmp_path).place("desk", 1)
    assert (group / "memory.max").read_text() == str(24 << 20)
    assert (group / "pids.max").read_text() == "3"


def test_the_servers_own_processes_move_aside_before_the_controllers_are_enabled(tmp_path: Path) -> None:
    mount = _mount(tmp_path)
    _find(tmp_path)
    assert (mount / "sage-server" / "cgroup.procs").read_text() == str(os.getpid())
    assert (mount / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_a_second_runner_uses_the_groups_of_the_first(tmp_path: Path) -> None:
    mount = _mount(tmp_path, enabled="memory pids")
    (mount / "sage-server").mkdir()
    (mount / "sage-server" / "cgroup.procs").write_text("")
    (tmp_path / "membership").write_text("0::/sage-server\n")
    _find(tmp_path).place("desk", 1)
    assert (mount / "sage-project-desk").is_dir()


@pytest.mark.parametrize("name", ["../../etc", "a/b", "", "Desk", "x" * 100, ".", "a\n"])
def test_a_group_is_one_directory_under_the_servers_own_whatever_the_project_is_called(
    name: str, tmp_path: Path
) -> None:
    mount = _mount(tmp_path, enabled="memory pids")
    _find(tmp_path).place(name, 1)
    assert [path.name[:13] for path in mount.iterdir() if path.is_dir()] == ["sage-project-"]


def test_a_full_group_takes_no_further_process(tmp_path: Path) -> None:
    mount = _mount(tmp_path)
    groups = _find(tmp_path)
    groups.place("desk", 1)
    (mount / "sage-project-desk" / "cgroup.procs").write_text("1\n2\n3\n")
    with pytest.raises(SandboxError, match=r"project desk have 3 processes.*SAGE_SANDBOX_PROJECT_MEMORY_MB"):
        groups.place("desk", 4)
    groups.place("other", 5)


def test_a_group_that_others_manage_is_left_alone(tmp_path: Path) -> None:
    mount = _mount(tmp_path, own="system.slice/some.service")
    with pytest.raises(UnusableCgroupError, match=r"not delegated to this server \(systemd: Delegate=yes\)"):
        _find(tmp_path)
    assert not list(mount.rglob("sage-*"))


def test_missing_controllers_are_named(tmp_path: Path) -> None:
    _mount(tmp_path, controllers="cpu memory")
    with pytest.raises(UnusableCgroupError, match="has no controller pids"):
        _find(tmp_path)


def test_cgroup_v1_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableCgroupError, match="cgroup v2 is not mounted"):
        _find(tmp_path)


async def test_the_sandbox_says_whether_projects_share_limits() -> None:
    async with ForkedSandbox(bwrap=False, shared=SharedLimits(memory_bytes=1 << 30)) as sandbox:
        said = sandbox.describe()
        session = await sandbox.open({}, _no_call, SessionLimits(project="desk"))
        assert (await session.run("print(1)")).stdout == "1\n"
        inside = "sage-project-desk" in _cgroup_of(session._process.fork.pid)
        await session.close()
    why_not = _why_not()
    limits = "limits of memory and processes per project"
    assert said.endswith(f", with {limits}" if why_not is None else f", without {limits} ({why_not})")
    assert inside == (why_not is None)


def _cgroup_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def _why_not() -> str | None:
    try:
        ControlGroups.find(_LIMITS)
    except UnusableCgroupError as error:
        return str(error)
    return None


async def _no_call(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:
    raise LookupError(f"{api} {args} {kwargs}")
