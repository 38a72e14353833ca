"""`python -m simulator` is the command `braid`."""

from simulator.commands.main import main

if __name__ == "__main__":
    main()
