"""Git for tests of projects: commands that must succeed, under a name of their own."""

import subprocess
from pathlib import Path

IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")


def git(folder: Path, *arguments: str) -> str:
    """Output of a git command."""
    done = subprocess.run(
        ["git", *IDENTITY, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commit(folder: Path, message: str) -> None:
    """Commits everything."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message)
