"""``specwb class``: what a class guessed and solved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def classroom(
    folder: Annotated[
        Path, typer.Argument(help="Of the files that the students' course.collect(NAME) wrote.")
    ],
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write the grade sheet here.", writable=True)
    ] = None,
) -> None:
    """Print a histogram of the guesses at every question, and a grade sheet as CSV."""
    from specwb.course import classroom as course
    from specwb.files import check_path, write_all

    if csv_file is not None:
        check_path(csv_file, "--csv")
        if csv_file.suffix == ".json" and csv_file.resolve().parent == folder.resolve():
            raise ValueError(f"--csv {csv_file} would stand among the files that are read")
    sheets = course.read(folder)
    typer.echo(course.histogram(sheets))
    if csv_file is None:
        typer.echo(f"\n{course.sheet(sheets)}", nl=False)
    else:
        write_all({csv_file: lambda: course.sheet(sheets)})
