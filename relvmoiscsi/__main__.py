# SPDX-License-Identifier: LGPL-2.1-only
"""The program: python3 -m relvmoiscsi, the command that pip installs, and that of the package for dom0."""


def run() -> None:
    """Run the command with the words of this process, and end the process.

    A signal during the imports waits until `main` has its handlers.
    """
    signals = __import__("_signal")  # of the interpreter itself
    signals.pthread_sigmask(signals.SIG_BLOCK, (signals.SIGTERM, signals.SIGHUP, signals.SIGINT))
    import gc  # noqa: PLC0415 - each import takes time, in which a signal may come

    # Searching for cycles takes a sixth of a run, and finds few hundred objects in a resignature of 1000 VDIs.
    gc.disable()
    from relvmoiscsi.cli import main  # noqa: PLC0415

    try:
        status = main()
    except SystemExit as end:  # of the parser: the help is printed, or the words are wrong
        status = end.code if isinstance(end.code, int) else 0
    from relvmoiscsi.host.terminated import leave  # noqa: PLC0415

    leave(status)


if __name__ == "__main__":
    run()
