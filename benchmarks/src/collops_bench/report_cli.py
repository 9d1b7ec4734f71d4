"""``collops report``: one page with tables and plots of all recorded benchmark runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from collops.cli.errors import guarded
from collops.cli.options import Debug

__all__ = ["report"]


def report(
    results: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Folder of the recorded results.")] = Path(
        "benchmarks/results"
    ),
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.html", help="The page.")] = Path("report.html"),
    debug: Debug = False,
) -> None:
    """Write one self-contained page with tables and plots of all recorded runs, beside peers and limits."""

    def here() -> int:
        from collops.apps.outputs import atomic, check_writable
        from collops_bench.page import report_page
        from collops_bench.report import read_folder

        check_writable(out)
        page = report_page(read_folder(results))
        with atomic(out) as temporary:
            temporary.write_text(page, encoding="utf-8")
        typer.echo(f"wrote {out}")
        return 0

    raise typer.Exit(guarded("collops report", here, debug=debug))
