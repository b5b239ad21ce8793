#!/usr/bin/env python3
# SPDX-License-Identifier: LGPL-2.1-only
"""A simulated pool to try `relvmoiscsi pool` on: `make playground`, or `make playground TOUR=1`.

The pool is that of the tests (tests/kit): a XenAPI over HTTP, and our own engine on the bytes of LUNs in memory. The
playground opens a shell, in which `relvmoiscsi` and some commands of `xe` talk to that pool. When the shell ends, the
pool and its LUNs are gone. The tour types the commands of a night by itself.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Sequence, Tuple

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "tests")]

from kit.build_lvm import replace_in_text  # noqa: E402
from kit.builder import raw  # noqa: E402
from kit.damage import DAMAGES  # noqa: E402
from kit.lun_world import World  # noqa: E402
from kit.pool_lab import Lab, lab_of_three, sr_disk  # noqa: E402
from relvmoiscsi.cli.output import EXIT_INTERRUPTED, EXIT_NOT_PRINTED  # noqa: E402

PROGRAMS = TOP / "tools/in_playground"  #: a second terminal keeps it in its PATH, also when the playground has ended

_THERE = """\
A simulated pool, in this process only. Nothing here touches a real host.

  hosts   xs1 (pool master), xs2, xs3

  SR      "Production", in use, on the LUN {original}

  VMs     web, db and mail run, with disks on "Production"; helper is halted

  LUNs    {clone}
            an array snapshot of "Production", mapped to all hosts
          {foreign}
            a LUN with an SR of another pool
"""

_HERE = """\
In this shell `relvmoiscsi` finds the pool by these variables. A second
terminal needs these lines, too:

{exports}

Try it, and type `exit` at the end:

  relvmoiscsi pool luns
  relvmoiscsi pool attach {clone}
  relvmoiscsi pool clone "{copy}" web --isolated night
  xe vm-start vm="web on {copy}"

`playground snapshot` maps one more clone of "Production",
`playground host-down xs2` takes a host down, and `playground help` lists the
other words.

`relvmoiscsi doctor` and `relvmoiscsi direct` belong to a dom0, and no
simulated host has one. `xe help` lists what this `xe` knows.
"""

#: the night of docs/night.rst, and the day after; each line is typed as it stands
TOUR = (
    ("What is there? The line of the clone names its original.", "relvmoiscsi pool luns"),
    ("What would be done? A dry run changes nothing.", "relvmoiscsi pool attach {clone} --dry-run"),
    ("The clone gets new identities, and becomes an SR on all hosts.", "relvmoiscsi pool attach {clone} --yes"),
    ("Which VDI is which?", 'relvmoiscsi pool map "{copy}"'),
    (
        "A copy of the VM, on a network without a wire.",
        'relvmoiscsi pool clone "{copy}" web --isolated night --yes',
    ),
    ("It starts beside the original, which runs on.", 'xe vm-start vm="web on {copy}"'),
    (
        "The copy of the VM is shut down: `discard` refuses a running VM.",
        'xe vm-shutdown vm="web on {copy}" force=true',
    ),
    ("The copies go together: VM, network, SR.", 'relvmoiscsi pool discard "{copy}" --with-vms --yes'),
    ("The array takes a second snapshot, and maps it.", ""),
    ("It is attached as well.", "relvmoiscsi pool attach {second} --yes"),
    (
        "The original VM returns to the state of the snapshot.",
        'relvmoiscsi pool restore "{later}" web --shutdown --yes',
    ),
    ("And back: its own disks are still there.", "relvmoiscsi pool restore --undo web --yes"),
    (
        "One disk of the snapshot, read-only, for another VM.",
        'relvmoiscsi pool rescue "{later}" data --vm helper --yes',
    ),
    ("The disk is given back.", 'relvmoiscsi pool rescue "{later}" --done --yes'),
    ("The second copy goes, too.", 'relvmoiscsi pool discard "{later}" --yes'),
    (
        "As before, but web is halted, and both snapshots are still mapped.",
        "relvmoiscsi pool luns",
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="A simulated pool to try `relvmoiscsi pool` on.")
    parser.add_argument("--tour", action="store_true", help="type the commands of a night, and end")
    arguments = parser.parse_args()
    for number in _ENDS:
        signal.signal(number, _end)
    try:
        return _opened(arguments.tour)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of the tour has gone, as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_NOT_PRINTED


_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  #: Ctrl-C, kill, a closed terminal


def _end(*_signal: object) -> None:
    """End the playground by its clean-up, which a second signal does not stop."""
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _opened(is_tour: bool) -> int:
    with furnished() as (lab, words, here):
        environment = {**os.environ, **here, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
        print(_THERE.format(**words), flush=True)
        if is_tour:
            return _play(lab, words, environment)
        exports = "\n".join(f"  export {name}={shlex.quote(text)}" for name, text in here.items())
        exports += f'\n  export PATH={shlex.quote(str(PROGRAMS))}:"$PATH"'
        print(_HERE.format(exports=exports, **words), flush=True)
        return subprocess.call(_shell(), env={**environment, "PS1": "(playground) $ "})


@contextmanager
def furnished() -> Iterator[Tuple[Lab, dict, dict]]:
    """Make the pool. Give (the pool, the words of the texts, the environment in which the programs find the pool)."""
    with lab_of_three(World()) as lab:
        words = _furnish(lab)
        yield lab, words, {**lab.pool.environment, "PLAYGROUND_PYTHON": sys.executable}


def _furnish(lab: Lab) -> dict:
    """Put into the pool what the playground says that there is. Return the words of its texts."""
    plugins = lab.pool.api.host_plugins.functions
    plugins["relvmoiscsi"] = lab.world.plugin
    plugins["playground"] = lambda _host, _function, given: "{}\n{}".format(*obey(lab, given["words"].split()))
    original = lab.original("Production", volumes=[raw("mail", label="mail store", extents=1)])
    clone = lab.clone("Production")
    target = lab.world.lun(original)
    foreign = lab.world.add(target.target, target.iqn, sr_disk("of another pool"))
    office = lab.network("office")
    for name, disk in (("web", "root disk"), ("db", "data"), ("mail", "mail store")):
        lab.vm(name, lab.vdi("Production", disk)[0], networks=[office], state="Running")
    lab.vm("helper", networks=[office])
    later = time.strftime("Production changed %Y-%m-%d", time.gmtime())  # the copy of a snapshot that is taken now
    return {"original": original, "clone": clone, "foreign": foreign, "copy": COPY, "later": later}


def _shell() -> Sequence[str]:
    """Return the words that begin the person's shell, with a prompt of its own: bash reads one from a file."""
    shell = os.environ.get("SHELL") or "sh"
    return [shell, "--rcfile", str(PROGRAMS / "bashrc")] if os.path.basename(shell) == "bash" else [shell]


_TEXT_BEGINS = b"creation_time = %d\t"
_CHANGED = 1795219866  #: when LVM last changed the SR "Production": that of tests/kit
COPY = time.strftime("Production changed %Y-%m-%d", time.gmtime(_CHANGED))  #: name of the first copy


def snapshot(lab: Lab) -> str:
    """Map a snapshot of "Production", which LVM has changed just now; return the SCSIid."""
    scsi_id = lab.clone("Production")
    replace_in_text(lab.world.lun(scsi_id).disk, _TEXT_BEGINS % _CHANGED, _TEXT_BEGINS % int(time.time()))
    return scsi_id


def _damaged(lab: Lab, scsi_id: str) -> str:
    """Damage LVM's metadata text on a LUN; return what was done."""
    DAMAGES["metadata text"](lab.world.lun(scsi_id).disk)
    return f"The text of LVM on the LUN {scsi_id} is damaged." + _is_plugged(lab, scsi_id) * _IN_USE


def _is_plugged(lab: Lab, scsi_id: str) -> bool:
    pbds = lab.pool.db.records("PBD", currently_attached=True).values()
    return any(pbd["device_config"].get("SCSIid") == scsi_id for pbd in pbds)


_IN_USE = """
Hosts have its SR plugged, and `relvmoiscsi pool luns` reads no LUN that a host
uses. After `relvmoiscsi pool discard` it reads the LUN."""


def obey(lab: Lab, words: Sequence[str]) -> Tuple[int, str]:
    """Do what the words of the program `playground` say; return (its exit status, what was done or may be said)."""
    hosts = {lab.pool.db.get("host", host, "name_label"): host for host in lab.pool.hosts}
    what, name = (*words, "", "")[:2]
    if what == "snapshot" and len(words) == 1:
        return 0, f'A clone of a snapshot of "Production" is mapped: {snapshot(lab)}'
    if what in ("host-down", "host-up") and name:
        if name not in hosts:
            return 2, f"There is no host {name!r}. The hosts: {', '.join(hosts)}"
        if what == "host-down" and hosts[name] == lab.pool.master:
            return 2, f"{name} is the pool master, without which no pool answers. Take another host down."
        (lab.pool.go_down if what == "host-down" else lab.pool.come_back)(hosts[name])
        return 0, f"{name} is {'down' if what == 'host-down' else 'up'}."
    if what in ("damage", "unmap") and name:
        if name in [scsi_id for scsi_id, _sr in lab.originals.values()]:
            return 2, f"The LUN {name} is the original. Give a clone."
        if name not in [lun.scsi_id for lun in lab.world.luns]:
            return 2, f"There is no LUN {name}: see `relvmoiscsi pool luns`."
        if what == "damage":
            return 0, _damaged(lab, name)
        if _is_plugged(lab, name):
            return 2, f"Hosts have its SR plugged. Run this first:\n  relvmoiscsi pool discard {name}"
        lab.world.unmap(name)
        return 0, f"The LUN {name} is unmapped from all hosts."
    if what == "two-srs":
        if "Testing" in lab.originals:
            return 2, "The VM mail has that disk already."
        lab.original("Testing")
        (mail,), disk = lab.pool.db.refs("VM", name_label="mail"), lab.vdi("Testing", "data")[0]
        lab.pool.db.create("VBD", VM=mail, VDI=disk, userdevice="1", currently_attached=True)
        return 0, 'The VM mail has a second disk, on the SR "Testing", of which there is no clone.'
    return 0 if what in ("help", "-h", "--help") else 2, _WORDS.format(hosts=", ".join(hosts))


_WORDS = """\
Give one of these words:
  playground snapshot         map one more clone of "Production"
  playground host-down HOST   take a host down
  playground host-up HOST     bring the host back
  playground damage SCSIID    damage a clone, also one with new identities
  playground unmap SCSIID     unmap a clone from all hosts
  playground two-srs          give the VM mail a disk on a second SR
The hosts: {hosts}"""


def _play(lab: Lab, words: dict, environment: dict) -> int:
    for number, (what, line) in enumerate(TOUR, 1):
        print(f"\n== {number}. {what}\n", flush=True)
        if not line:
            words["second"] = snapshot(lab)
            print(f"It has the SCSIid {words['second']}.", flush=True)
            continue
        command = line.format(**words)
        print(f"$ {command}", flush=True)
        status = subprocess.call(["sh", "-c", command], env=environment, stdin=subprocess.DEVNULL)
        if status == EXIT_NOT_PRINTED:
            raise BrokenPipeError
        if status:
            print(f"This ended with the status {status}, expected 0.", file=sys.stderr)
            return status
    print("\n== Now yours: `make playground` opens a shell with this pool.", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
