"""The command line from a checkout: `python cli.py run …` is `compress run …`."""

from compressor.commands import main

if __name__ == "__main__":
    main()
