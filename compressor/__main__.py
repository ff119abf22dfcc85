"""`python -m compressor` is `compress`."""

from compressor.commands import main

if __name__ == "__main__":
    main()
