"""The system calls that sandboxed code may make, as a BPF program. All others fail or kill the process."""

import errno
import importlib
import os
from typing import Any

from app.errors import SandboxError
from app.sandbox.child.confine import SESSION_FD

_PROT_EXEC = 4

_ALLOWED = """
brk clock_getres clock_gettime clock_nanosleep close exit exit_group futex getegid geteuid getgid getitimer
getpid getppid getrandom getrusage gettid gettimeofday getuid madvise mremap munmap nanosleep restart_syscall
rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn sched_yield setitimer time times uname
"""

_ONE_FD = ("read", "write")  # on the session's socket only

_NOT_EXECUTABLE = ("mmap", "mprotect")  # both take the protection as their third argument

_NO_FILES = """
access chdir chmod chown chroot creat execve execveat faccessat faccessat2 fchmodat fchownat getcwd lchown link
linkat lstat mkdir mkdirat mknod mknodat mount newfstatat open open_tree openat openat2 pivot_root readlink
readlinkat rename renameat renameat2 rmdir stat statfs statx symlink symlinkat truncate umount2 unlink unlinkat
utimensat
"""


def build() -> bytes:
    """The filter for this machine's architecture. System calls of other ones, x32 included, kill the process."""
    seccomp = _libseccomp()
    rules = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    rules.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.KILL_PROCESS)
    for name in _ALLOWED.split():
        rules.add_rule(seccomp.ALLOW, name)
    for name in _ONE_FD:
        rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(0, seccomp.EQ, SESSION_FD))
    for name in _NOT_EXECUTABLE:
        rules.add_rule(seccomp.ALLOW, name, seccomp.Arg(2, seccomp.MASKED_EQ, _PROT_EXEC, 0))
    for name in _NO_FILES.split():
        rules.add_rule(seccomp.ERRNO(errno.EACCES), name)  # so that open() raises PermissionError
    return _export(rules)


def _libseccomp() -> Any:
    try:
        return importlib.import_module("pyseccomp")  # loads libseccomp when imported
    except (ImportError, RuntimeError) as error:
        raise SandboxError(
            "the sandbox needs Linux with libseccomp: install the package libseccomp2 (Debian, Ubuntu) or "
            "libseccomp (Fedora, Alpine), or run the server in its container"
        ) from error


def _export(rules: Any) -> bytes:
    with open(os.memfd_create("filter"), "w+b") as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()
