"""``python -m specwb``, which is what ``accelerate launch -m specwb`` starts, and the command
``specwb``."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C is one line and exit code 130 while it is still imported too."""
    try:
        from specwb.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
