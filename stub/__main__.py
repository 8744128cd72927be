"""Run by path, with the interpreter of a model: one stub, or the fork server that starts the others.

The script's own folder leaves sys.path at once, since the names in it (shared, session, ...) may be the user's as well.
"""
# mypy: disable-error-code="import-not-found"

import argparse
import os
import sys
from typing import Optional

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [os.path.join(_HERE, "api")] + [path for path in sys.path if os.path.abspath(path) != _HERE]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tensorbus stub")
    parser.add_argument("--bus", required=True, help="ZeroMQ address of the broker")
    parser.add_argument("--key", default="", help="the instance's key")
    parser.add_argument("--title", default="", help="for the process list")
    parser.add_argument("--fork-server", type=int, metavar="FD", help="a socket to the server; starts stubs on demand")
    parser.add_argument("--run-dir", help="to be removed when the server has died")
    parser.add_argument("--shm-directory", help="to be swept when a stub or the server has died")
    parser.add_argument("--packages", metavar="DIR", action="append", default=[], help="to be searched last")
    return parser.parse_args()


given = _arguments()
sys.path += given.packages  # before the first import of what may only be there

import triton_python_backend_utils  # noqa: E402, F401 - every model imports it; forked stubs share it
from _tensorbus_app.stub import process  # noqa: E402


def main() -> None:
    """Returns in a fork server whose work is done; a stub exits by itself."""
    assignment: Optional[process.Assignment] = process.Assignment(given.bus, given.key, given.title)
    if given.fork_server is not None:
        from _tensorbus_app.stub import fork_server

        assignment = fork_server.ForkServer(given.fork_server, given.bus, given.run_dir, given.shm_directory).serve()
    if assignment is not None:
        process.run(assignment)


if __name__ == "__main__":
    main()
