"""Makes the virtual environment and installs the project: `python set_up.py DIRECTORY [EXTRA...]`.

Runs on whatever Python 3 the machine has, with nothing installed, and says what is missing.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

OLDEST = (3, 11)
PROJECT = Path(__file__).resolve().parent.parent


def fail(message: str) -> None:
    """End with a message."""
    sys.exit(f"error: {message}")


def check_machine() -> None:
    """End with a message where the install could not succeed."""
    found = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info < OLDEST:
        fail(f"{sys.executable} is Python {found}; 3.11 or later is needed: make PYTHON=python3.12")
    compiler = os.environ.get("CXX") or "c++"
    if shutil.which(compiler) is None and shutil.which("g++") is None:
        fail(f"no C++ compiler ({compiler}, g++): on Debian, apt-get install g++")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        fail(f"{header} is missing: on Debian, apt-get install python3-dev")
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        fail(f"{sys.executable} cannot make environments: on Debian, apt-get install python3-venv")


def make_environment(directory: Path) -> Path:
    """The interpreter of the environment, which is made unless it is there."""
    interpreter = directory / "bin" / "python"
    if interpreter.exists():
        asked = [str(interpreter), "-c", "import sys; print(sys.version_info[:2])"]
        answer = subprocess.run(asked, stdout=subprocess.PIPE, check=False).stdout.decode()
        if answer.strip() != str(sys.version_info[:2]):
            fail(
                f"{directory} was made by another Python than {sys.executable}: run make clean, "
                "or choose that one with PYTHON="
            )
    if not (directory / "bin" / "pip").exists():
        print(f"making {directory} with {sys.executable}", flush=True)
        if subprocess.call([sys.executable, "-m", "venv", str(directory)]) != 0:
            fail(f"{sys.executable} could not make {directory}")
    return interpreter


def install(interpreter: Path, extras: "list[str]") -> None:
    """Build the project and install it, editable, with its dependencies."""
    wanted = str(PROJECT) + (f"[{','.join(extras)}]" if extras else "")
    print("building and installing the project: a minute or two", flush=True)
    options = ["--disable-pip-version-check", "--quiet", "--editable"]
    if subprocess.call([str(interpreter), "-m", "pip", "install", *options, wanted]) != 0:
        fail("pip could not install the project; its messages above say why")


def main() -> None:
    """Check, make, install."""
    directory, *extras = sys.argv[1:]
    check_machine()
    install(make_environment(Path(directory)), extras)


if __name__ == "__main__":
    main()
