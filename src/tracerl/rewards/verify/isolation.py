"""The command that starts an isolated interpreter, what is visible inside, and the code that it
runs first."""

import functools
import os
import py_compile
import shutil
import struct
import sys
import sysconfig
import tempfile
from pathlib import Path


@functools.cache
def guest_code() -> bytes:
    """What a sandbox runs, compiled once for all of them (their Python is this one's): four bytes
    of length and the code."""
    header = 16  # bytes before the code in a .pyc file
    with tempfile.TemporaryDirectory(prefix="tracerl-") as folder:
        compiled = Path(folder) / "guest.pyc"
        source = Path(__file__).with_name("guest.py")
        py_compile.compile(str(source), str(compiled), "guest.py", doraise=True, optimize=2)
        code = compiled.read_bytes()[header:]
    return struct.pack("<I", len(code)) + code


def outer_python() -> str:
    return str(
        Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    )


def inner_python() -> str:
    return f"/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"


def inner_packages(number: int) -> str:
    return f"/packages/{number}"


@functools.cache
def bubblewrap_command(uid: int | None, file_size: int, packages: tuple[str, ...]) -> list[str]:
    """The command line up to the program: what is visible inside, and what is not shared with the
    outside."""
    prefix = Path(sys.base_prefix)
    command = [
        shutil.which("bwrap") or "bwrap",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
        "--hostname",
        "sandbox",
    ]
    command += [] if uid is not None else ["--unshare-user"]
    command += _visible_libraries(prefix)
    for folder in _installed_packages(prefix):
        command += ["--tmpfs", folder]
    command += ["--dir", "/packages"] if packages else []
    for number, folder in enumerate(packages):
        command += ["--ro-bind", folder, inner_packages(number)]
    for name in ("/tmp", "/dev/shm"):
        command += ["--dev", "/dev"] if name == "/dev/shm" else []
        command += ["--perms", "1777", "--size", str(16 * file_size), "--tmpfs", name]
    return [*command, "--proc", "/proc", "--remount-ro", "/", "--chdir", "/tmp"]


def _visible_libraries(prefix: Path) -> list[str]:
    """The system's shared libraries, and Python with its standard library, to be read only."""
    # Parents that are made on the way would be closed to the sandbox's own user.
    command = ["--dir", "/usr"]
    for name in ("/lib", "/lib64", "/usr/lib", "/usr/lib64"):
        path = Path(name)
        if path.is_symlink():
            command += ["--symlink", os.readlink(path), name]
        elif path.is_dir():
            command += ["--ro-bind", name, name]
    command += ["--dir", "/python"]
    command += ["--ro-bind", str(prefix / "bin"), "/python/bin"]
    return [*command, "--ro-bind", str(prefix / "lib"), "/python/lib"]


def _installed_packages(prefix: Path) -> list[str]:
    """Folders inside that are hidden: benchmark data with solutions may be among the packages."""
    folders: dict[str, None] = {}
    for scheme in ("purelib", "platlib"):
        bases = {"base": str(prefix), "platbase": str(prefix)}
        installed = Path(sysconfig.get_path(scheme, vars=bases))
        if installed.is_dir() and installed.is_relative_to(prefix):
            folders[str(Path("/python") / installed.relative_to(prefix))] = None
    if Path("/usr/lib/python3/dist-packages").is_dir():
        folders["/usr/lib/python3/dist-packages"] = None
    return list(folders)
