"""`python -m atomsep` is the command line."""

from atomsep.cli.commands import main

main()
