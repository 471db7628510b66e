"""`python -m atomsep` is the command line."""

from atomsep.cli.main import main

main()
