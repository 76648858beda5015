"""``python -m specwb``, which is what ``accelerate launch -m specwb`` starts."""

from specwb.cli import main

if __name__ == "__main__":
    main()
