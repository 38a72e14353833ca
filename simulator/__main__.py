"""`python -m simulator` is the command `braid`."""

from simulator.cli import main

if __name__ == "__main__":
    main()
