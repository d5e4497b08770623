"""Errors that a user can act on, and how the commands report them."""

import sys


class UserError(Exception):
    """Says in the user's words what is wrong, where, and what to do about it."""


def run(command, main):
    """Runs `main`; a UserError becomes one message and exit status 1."""
    try:
        main()
    except UserError as error:
        print(f"{command}: error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"{command}: interrupted", file=sys.stderr)
        sys.exit(130)
