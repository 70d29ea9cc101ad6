"""`python -m tileseek`."""

from .cli import main

main()
