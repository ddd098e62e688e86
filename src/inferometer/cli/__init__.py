"""The command line: `commands.py` has the commands, one file each, and `exits.py` says how a process ends.

Exit codes: 0 done, 1 infeasible (the reason is in the result), 2 bad request (one sentence on stderr), 70 a fault of
inferometer itself, 129, 130 and 143 ended by SIGHUP, Ctrl-C and SIGTERM.
"""

from __future__ import annotations  # nothing else is imported here: Ctrl-C shall meet `main`, not an import before it


def main(args: list[str] | None = None) -> None:
    """Run a command and exit: ``main(["analyze", "llama-3.1-8b"])``"""
    import sys

    try:
        from .exits import exit_code

        code = exit_code(list(sys.argv[1:] if args is None else args))
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
