"""An import onto a file system that runs full: refused in one line, and nothing stays behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from blink_server.testing.tiny_gguf import write_tiny_gguf

# A mount of its own: it is gone with its process, whatever happens.
IMPORT = r"""
mount -t tmpfs -o size=$1k tmpfs "$2" || exit 77
cp -r "$3" "$2/tiny" 2>&1 || true
"$4" -m blink_server import --gguf="$5" --name="$6" --engine="$7" \
    --model-repository="$2"
echo "exit $?"
find "$2" -mindepth 1 | sort
"""
KIB = 1024


@pytest.fixture
def namespaces() -> list[str]:
    """The command that gives a process mounts of its own; skips where nobody may have them."""
    command = ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no mounts of one's own here: {error}")
    return command


@pytest.mark.parametrize(
    ("name", "engine"), [("tiny", "onnx_cpu"), ("other", "onnx_cpu"), ("other", "cuda")]
)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_a_full_disk_stops_an_import_and_leaves_what_was_there(
    namespaces: list[str],
    tiny_repository: Path,
    short_path: Path,
    repository: Path,
    name: str,
    engine: str,
    share: float,
) -> None:
    write_tiny_gguf(short_path / "tiny.gguf")
    there = tiny_repository / "tiny"
    sizes = [file.stat().st_size for file in there.rglob("*") if file.is_file()]
    size = sum(sizes) + 64 * KIB + int(share * sum(sizes))
    finished = subprocess.run(
        [
            *(*namespaces, "sh", "-c", IMPORT, "sh"),
            *map(str, (size // KIB, repository, there, sys.executable)),
            *(str(short_path / "tiny.gguf"), name, engine),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    output, _, left = finished.stdout.partition("exit 1\n")
    assert "No space left on device" in output + finished.stderr
    assert (output + finished.stderr).count("error:") == 1
    assert "Traceback" not in finished.stderr
    before = [repository / "tiny" / path.relative_to(there) for path in there.rglob("*")]
    assert left.split("\n")[:-1] == sorted(map(str, [repository / "tiny", *before]))
