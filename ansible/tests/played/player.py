# SPDX-License-Identifier: LGPL-2.1-only
"""Runs playbooks for conftest.Player: ansible-playbook's own main(), in a process of its own that is forked when all is
imported.

A line of stdin is a wish, {"arguments": [...], "env": {...}, "out": "file", "anew": false}; of stdout, its exit status.

A wish may be for modules with an interpreter `anew`. Otherwise a process with its imports made forks for each module,
and executes the archive that Ansible would write to an interpreter. The collection comes from that archive.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.resources
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import traceback

#: what any run imports later
LATER = ("executor.task_executor", "plugins.strategy.linear", "plugins.callback.default", "plugins.connection.local")
#: what any module imports that is not of the collection
OF_MODULES = (
    "ansible.module_utils.basic",
    "ansible.module_utils._internal._ansiballz._loader",
    "relvmoiscsi.pool.connection",
    "relvmoiscsi.pool.records",
)


def play(wish, modules):
    out = os.open(wish["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), out, out)):
        os.dup2(file, number)
    os.environ.update(wish["env"])
    if not wish["anew"]:
        modules.take_over()
    from ansible.cli import playbook  # noqa: PLC0415 - by then it is there

    playbook.main(["ansible-playbook", *wish["arguments"]])


def status_of(do, *arguments):
    """Call `do`, and return the exit status for the process that does so and then ends.

    A play leaves its archives of modules to later plays.
    """
    try:
        do(*arguments)
    except SystemExit as ended:
        return ended.code or 0
    except BaseException:  # noqa: BLE001 - as an interpreter does
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


class Modules:
    """Executes modules, each in a process of its own. It ends with the process that has made it."""

    def __init__(self, directory):
        self.address = os.path.join(directory, "modules")
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listening.bind(self.address)
        self.listening.listen(16)
        ended, self._lives = os.pipe()
        if not os.fork():
            os.close(self._lives)
            os._exit(status_of(self._serve, ended))
        os.close(ended)
        self.listening.close()

    def _serve(self, ended):
        for name in OF_MODULES:
            importlib.import_module(name)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while ended not in select.select([self.listening, ended], [], [])[0]:
            connection, _ = self.listening.accept()
            if not os.fork():
                self._execute(connection)
            connection.close()

    def _execute(self, connection):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        env, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.environ.clear()
        os.environ.update(json.loads(env))
        status = status_of(exec, sys.stdin.read(), {"__name__": "__main__"})
        atexit._run_exitfuncs()
        connection.send(b"%d" % status)
        os._exit(0)

    def take_over(self):
        """From now on, in this process, the connection `local` brings modules here."""
        local = importlib.import_module("ansible.plugins.connection.local").Connection
        anew = local.exec_command

        def exec_command(connection, cmd, in_data=None, sudoable=True):
            if not in_data or cmd != f"/bin/sh -c {sys.executable}":
                return anew(connection, cmd, in_data, sudoable)
            return self._executed(in_data)

        local.exec_command = exec_command

    def _executed(self, text):
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(text)
            given.seek(0)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.connect(self.address)
                env = json.dumps(dict(os.environ)).encode()
                socket.send_fds(connection, [env], [each.fileno() for each in (given, out, err)])
                status = int(connection.recv(16) or b"1")
            out.seek(0), err.seek(0)
            return status, out.read(), err.read()


def prepare():
    """Import and read what every run would."""
    importlib.import_module("ansible.cli.playbook")
    for name in LATER:
        importlib.import_module("ansible." + name)
    loader = importlib.import_module("ansible.plugins.loader")
    for plugins in (loader.connection_loader, loader.become_loader, loader.shell_loader):
        list(plugins.all(class_only=True))  # with their documentation
    finder = importlib.import_module("ansible.utils.collection_loader._collection_finder")
    finder._meta_yml_to_dict = functools.lru_cache(maxsize=None)(finder._meta_yml_to_dict)
    config = importlib.resources.files("ansible") / "config/ansible_builtin_runtime.yml"
    finder._meta_yml_to_dict(config.read_bytes(), ("ansible.builtin", "runtime.yml"))


def main():
    directory = tempfile.mkdtemp()  # not TemporaryDirectory: each process that ends would remove it
    try:
        modules = Modules(directory)  # first: it must not be a controller
        prepare()
        for line in sys.stdin:
            process = os.fork()
            if not process:
                status = 1
                try:
                    status = status_of(play, json.loads(line), modules)
                finally:
                    os._exit(status)
            print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
