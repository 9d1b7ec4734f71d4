"""Run the shell steps of the workflows on this machine, each job in a clean clone of the last commit.

    python packaging/workflows.py [--job NAME] [--list]

GitHub's own steps have stand-ins: a checkout is the clone, an interpreter is the one of this machine, and artifacts are
not kept. Jobs and steps that need something else are skipped, and their reason is printed. Needs PyYAML; validates the
workflow files with check-jsonschema first.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
# Steps of other authors that need no stand-in here, as nothing after them in their job uses their result.
STAND_INS = {
    "actions/checkout": "the clone",
    "actions/setup-python": sys.version.split()[0],
    "actions/upload-artifact": "not kept",
}
SKIPPED = {
    ("Benchmarks on GPUs", "bench"): "needs a GPU",
    ("Wheels", "publish"): "needs the registry, and the right to publish",
}
SKIPPED_STEPS = {
    "The same with the releases of the week": "needs an hour; differs from the step before by its versions"
}


def main() -> None:
    """Run all jobs, or one; the first step that fails ends the program."""
    parser = argparse.ArgumentParser(description="Run the shell steps of the workflows.")
    parser.add_argument("--job", action="append", help="the name of a job; by default all")
    parser.add_argument("--list", action="store_true", help="print the steps without running them")
    options = parser.parse_args()
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    validator = [str(Path(sys.executable).parent / "check-jsonschema"), "--builtin-schema", "vendor.github-workflows"]
    subprocess.run([*validator, *map(str, files)], check=True)
    for file in files:
        workflow = yaml.safe_load(file.read_text("utf-8"))
        for name, job in workflow["jobs"].items():
            if options.job and name not in options.job:
                continue
            reason = SKIPPED.get((workflow["name"], name))
            print(f"{workflow['name']}, {name}" + (f": skipped, {reason}" if reason else ""), flush=True)
            if not reason:
                run_job(job["steps"], options.list)


def run_job(steps: list[dict[str, str]], only_list: bool) -> None:
    """Run the steps of a job, in order, in a clone of their own."""
    with tempfile.TemporaryDirectory() as temporary:
        clone = Path(temporary) / "collops"
        if not only_list:
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        for step in steps:
            if "uses" in step:
                action = step["uses"].partition("@")[0]
                print(f"  {action}: {STAND_INS[action]}", flush=True)
            elif step["name"] in SKIPPED_STEPS:
                print(f"  {step['name']}: skipped, {SKIPPED_STEPS[step['name']]}", flush=True)
            else:
                print(f"  {step['name']}:", *step["run"].splitlines(), sep="\n    ", flush=True)
                if not only_list:
                    run_step(step["run"], clone)


def run_step(script: str, clone: Path) -> None:
    """Run a script as GitHub does, and print its seconds; end the program with its output if it fails."""
    if "${{" in script:
        raise SystemExit("this step has an expression of GitHub, which cannot be evaluated here")
    own = ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    begun = time.perf_counter()
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    print(f"    {time.perf_counter() - begun:.0f} s, exit code {done.returncode}", flush=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout[-5000:]}\n{done.stderr[-5000:]}")


if __name__ == "__main__":
    main()
