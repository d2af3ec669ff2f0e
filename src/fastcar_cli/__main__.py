"""`python -m fastcar_cli` is `fastcar`."""

from fastcar_cli.cli.app import main

main()
