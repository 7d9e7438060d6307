"""Known security holes of the locked packages, by pip-audit in an environment of its own.

    python .ci/audit.py requirements.lock

The exit status is 1 if a package has a known hole. Where no index answers, this says how many
packages were not checked, and ends with 0: a check that cannot be made is told, not failed.
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

INSTALL_SECONDS = 300
AUDIT_SECONDS = 600
OPTIONS = ("--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json")


def main(lock: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        programs = Path(folder) / "bin"
        install = [
            programs / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--retries",
            "1",
            "pip-audit",
        ]
        try:
            done = run(install, INSTALL_SECONDS)
            if done.returncode:
                return tell_unchecked(done.stderr)
            options = [
                "--no-deps",
                "--disable-pip",
                "--progress-spinner",
                "off",
                "--format",
                "json",
            ]
            done = run([programs / "pip-audit", "--requirement", lock, *options], AUDIT_SECONDS)
        except subprocess.TimeoutExpired as error:
            return tell_unchecked(str(error))
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        return tell_unchecked(done.stderr)
    return tell(packages)


def tell(packages: list[dict]) -> int:
    """Prints what is known of each package; 1 if one has a hole."""
    unchecked = [package["name"] for package in packages if "skip_reason" in package]
    if len(unchecked) == len(packages):
        return tell_unchecked(f"none of {len(packages)} packages is in the index's list of holes")
    holes = []
    for package in packages:
        for hole in package.get("vulns", []):
            fixed = ", ".join(hole["fix_versions"]) or "no version yet"
            holes.append(f"{package['name']} {package['version']}: {hole['id']}, fixed in {fixed}")
    print("\n".join(holes))
    print(f"{len(packages) - len(unchecked)} packages checked, {len(holes)} known holes")
    if unchecked:
        print(f"not checked, the index does not know them: {', '.join(unchecked)}")
    return 1 if holes else 0


def tell_unchecked(reason: str) -> int:
    lines = reason.strip().splitlines() or ["it did not say why"]
    print(f"not checked for known holes, no index answers: {lines[-1]}")
    return 0


def run(command: list, seconds: int) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
