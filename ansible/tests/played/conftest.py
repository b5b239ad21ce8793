# SPDX-License-Identifier: LGPL-2.1-only
"""Playbooks are run for real, by ansible-playbook on the collection as it is built and installed, against the simulated
pool, with TLS. Its imports are made once (player.py).
"""

import importlib
import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args

from kit.certificates import self_signed
from kit.lun_world import World
from kit.pool.errors import XenError
from kit.pool_lab import Lab

HERE = Path(__file__).resolve().parent
COLLECTION = HERE.parents[1]
TOP = COLLECTION.parent
BIN = Path(sys.executable).parent
PATH = f"{BIN}:{os.environ['PATH']}"


def environment(home):
    return {
        "PATH": PATH,
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "ANSIBLE_HOME": str(home / "ansible"),
        "ANSIBLE_CONFIG": str(home / "ansible.cfg"),
        "ANSIBLE_COLLECTIONS_PATH": str(home),
        "ANSIBLE_CALLBACK_PLUGINS": str(HERE / "callback_plugins"),
        "ANSIBLE_CALLBACKS_ENABLED": "results",
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "ANSIBLE_NOCOLOR": "1",
        "PYTHONPATH": str(TOP),
    }


def galaxy(*arguments, home):
    """What ansible-galaxy does with the collection."""
    argv = [str(BIN / "ansible-galaxy"), "collection", *map(str, arguments)]
    env = environment(home)
    done = subprocess.run(
        argv, check=False, env=env, cwd=str(home), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A directory with the collection, as built and installed; `home / "built"` has the tarball."""
    home = tmp_path_factory.mktemp("home")
    (home / "ansible.cfg").write_text("[defaults]\ninternal_poll_interval = 0.01\n")  # not a thousand times a second
    galaxy("build", COLLECTION, "--output-path", home / "built", home=home)
    (tarball,) = (home / "built").iterdir()
    galaxy("install", "--offline", "-p", home, tarball, home=home)
    return home


class Player:
    """ansible-playbook, whose imports are made once: a third of the time of a small playbook."""

    def __init__(self, home):
        argv, self.home = [sys.executable, str(HERE / "player.py")], home
        self.process = subprocess.Popen(
            argv, env=environment(home), cwd=str(home), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, arguments, env, out, anew):
        """Its exit status; what it prints is in the file `out`. Modules have an interpreter `anew`, or are forked."""
        wish = {"arguments": list(map(str, arguments)), "env": env, "out": str(out), "anew": anew}
        self.process.stdin.write(json.dumps(wish) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self):
        self.process.communicate(timeout=60)


@pytest.fixture(scope="session")
def player(home):
    player = Player(home)
    yield player
    player.end()


@pytest.fixture(scope="session", autouse=True)
def sources(tmp_path_factory):
    """The collection where Python finds it, for modules that run in this process."""
    place = tmp_path_factory.mktemp("sources")
    (place / "ansible_collections/relvmoiscsi").mkdir(parents=True)
    (place / "ansible_collections/relvmoiscsi/pool").symlink_to(COLLECTION)
    sys.path.insert(0, str(place))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    return self_signed(tmp_path_factory.mktemp("tls"))


class Played(NamedTuple):
    """What came of a run of a playbook."""

    status: int
    out: str
    results: list  #: of the tasks, in their order
    recap: dict  #: {host: {"ok": 1, "changed": 0, ...}}

    @property
    def changed(self):
        return sum(counts["changed"] for counts in self.recap.values())

    def having(self, key):
        """The one result that has this key."""
        (found,) = (result for result in self.results if key in result)
        return found


class Stage:
    """A pool with originals, and what playbooks do to it."""

    def __init__(self, lab, world, player, ca, directory):
        self.lab, self.world, self.player, self.ca, self.directory = lab, world, player, ca, directory
        self.runs = 0

    def inventory(self):
        pool = self.lab.pool
        variables = {
            "pool_url": pool.url,
            "pool_user": pool.api.user,
            "pool_password": pool.api.password,
            "pool_ca": self.ca,
        }
        return {"pools": {"hosts": {"site1": variables}}}

    def play(self, playbook, *arguments, anew=False, **env):
        """Run a playbook: a file, or a list of (module, options); `anew` as for Player.run."""
        self.runs += 1
        if not isinstance(playbook, Path):
            playbook = self._written(playbook)
        inventory = self.directory / "inventory.json"
        inventory.write_text(json.dumps(self.inventory()))
        results, printed = (self.directory / f"{name}-{self.runs}" for name in ("results", "printed"))
        argv = ["-i", inventory, playbook, *arguments]
        status = self.player.run(argv, {"RESULTS": str(results), **env}, printed, anew)
        out = printed.read_text()
        lines = results.read_text().splitlines() if results.exists() else []
        return Played(status, out, [json.loads(line)["result"] for line in lines], _recap(out))

    def _written(self, tasks):
        connection = ("url", "user", "password", "ca")
        names = ("hostname", "username", "password", "ca_path")
        options = {name: "{{ pool_" + key + " }}" for name, key in zip(names, connection)}
        play = {
            "hosts": "pools",
            "connection": "local",
            "gather_facts": False,
            "module_defaults": {"group/relvmoiscsi.pool.pool": options},
            "tasks": [
                {"relvmoiscsi.pool." + module: dict(options), "ignore_errors": True} for module, options in tasks
            ],
        }
        path = self.directory / f"playbook-{self.runs}.json"
        path.write_text(json.dumps([play]))
        return path

    def tasks(self, *tasks, arguments=(), module="lun", anew=False):
        """The result of each task of a module, given its options, whether it fails or not."""
        played = self.play([(module, task) for task in tasks], *arguments, anew=anew)
        assert len(played.results) == len(tasks), played.out
        return played.results

    def now(self, module, check=False, **options):
        """The result of one module, which runs in this process, as a task would give it; it has no playbook."""
        pool = self.lab.pool
        where = {"hostname": pool.url, "username": pool.api.user, "password": pool.api.password}
        module = importlib.import_module(f"ansible_collections.relvmoiscsi.pool.plugins.modules.{module}")
        out = io.StringIO()
        arguments = {**where, "ca_path": str(self.ca), **options, "_ansible_check_mode": check, "_ansible_diff": True}
        with patch_module_args(arguments), redirect_stdout(out), pytest.raises(SystemExit) as ended:
            module.main()
        result = json.loads(out.getvalue())
        verify_documented(yaml.safe_load(module.RETURN), {key: result[key] for key in result if key not in COMMON})
        assert bool(ended.value.code) == result.get("failed", False)
        return {"failed": False, "changed": False, **result}

    def both(self, module="lun", **options):
        """((whether it fails, whether it changes), what check mode says, what happens then), alike in the first."""
        check, real = self.now(module, True, **options), self.now(module, **options)
        ended = real["failed"], real["changed"]
        assert (check["failed"], check["changed"]) == ended, (check, real)
        return ended, check, real

    def refuses(self, method, code="INTERNAL_ERROR"):
        """From now on xapi answers this call so."""

        def before(called, _params):
            if called == method:
                raise XenError(code, "no")

        self.lab.pool.api.before = before


#: keys of the results of all modules, which Ansible documents; `invocation` is for the log
COMMON = {"changed", "failed", "msg", "diff", "warnings", "deprecations", "exception", "invocation"}


def verify_documented(returns, result):
    """RETURN of a module has the keys of each result, and of each row in it, and no other key.

    A key of a row that has `returned` may be missing, and is never empty.
    """
    assert set(result) <= set(returns), "keys that ansible-doc does not show"
    for name, value in result.items():
        rows = value if isinstance(value, list) else [value]
        for row in rows if "contains" in returns[name] else []:
            shown = returns[name]["contains"]
            maybe = {key for key, about in shown.items() if "returned" in about}
            assert set(row) | maybe == set(shown), f"ansible-doc shows other keys of {name}"
            assert None not in [row[key] for key in maybe & set(row)], f"an empty key of {name}"
            verify_documented(returns[name]["contains"], {key: row[key] for key in row if row[key] is not None})
        is_row = returns[name].get("elements") == "dict"
        assert "contains" in returns[name] or not is_row, f"ansible-doc does not show the keys of {name}"


def _recap(out):
    found = {}
    for host, counts in re.findall(r"^(\S+) +: (ok=.*)$", out, re.MULTILINE):
        found[host] = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", counts)}
    return found


@pytest.fixture
def world():
    return World()


@pytest.fixture
def stage(world, player, certificate, tmp_path):
    """Three hosts, "Production" and "Testing" in use, and a clone of each."""
    tls, ca = certificate
    with world.pool(hosts=("xs1", "xs2", "xs3"), tls=tls) as pool:
        lab = Lab(world, pool)
        made = Stage(lab, world, player, ca, tmp_path)
        lab.original("Production")
        lab.original("Testing")
        made.clone = lab.clone("Production")
        made.other = lab.clone("Testing")
        yield made


@pytest.fixture
def day(stage):
    """The VM "web" runs, with two disks of Production; "helper" runs without any."""
    lab = stage.lab
    disks = [lab.vdi("Production", label)[0] for label in ("root disk", "data")]
    stage.web = lab.vm("web", *disks, networks=[lab.network("office")], state="Running")
    stage.helper = lab.vm("helper", state="Running", domain_type="pv_in_pvh")
    return stage
