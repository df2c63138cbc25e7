"""`python -m bench` is `bench`."""

from bench.cli.main import main

main()
