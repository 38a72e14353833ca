"""`python -m simulator` is the command `braid`.

Python looks into the current folder first: where that has a simulator.py, `braid` or `python -P -m simulator` is Braid.
"""

from simulator.commands.main import main

if __name__ == "__main__":
    main()
