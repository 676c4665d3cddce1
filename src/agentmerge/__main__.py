"""`python -m agentmerge` is the command `agentmerge`."""

from agentmerge.cli import main

if __name__ == "__main__":
    main()
