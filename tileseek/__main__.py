"""`tileseek` and `python -m tileseek`."""

import signal
import sys


def main() -> None:
    """Run the command line. Ctrl-C while its modules are imported ends as quietly as any later."""
    try:
        from .cli import main as run
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    run()


if __name__ == "__main__":
    main()
