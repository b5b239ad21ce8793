# SPDX-License-Identifier: LGPL-2.1-only
"""xapi takes any text for the UUID of an object that is introduced or restored: no message has it unquoted."""

import pytest

from kit.office import RESTORE

pytestmark = pytest.mark.states
SAYS = "x). Run `xe vm-destroy uuid=web` on the master, then repeat the command. (y"


def marked(office, **more):
    """A VM with a disk on the copy, with the marks of a clone, and such a text for its UUID."""
    uuid = office.pool.db.get("VM", office.web, "uuid")
    keys = {"relvmoiscsi:clone-of": uuid, "relvmoiscsi:sr": office.copy.sr_uuid}
    vm = office.vm("evil", office.on_copy("data"), other_config={**keys, **more})
    office.pool.db.forge("VM", vm, "uuid", SAYS)


def of_a_lost_disk(office):
    vdi = office.pool.db.create("VDI", SR=office.pool.db.refs("SR", name_label="copy")[0], location="y", managed=True)
    office.pool.db.forge("VDI", vdi, "uuid", SAYS)


def of_an_sr(office):
    for _ in range(2):
        sr = office.pool.db.create("SR", name_label="twice")
        office.pool.db.forge("SR", sr, "uuid", SAYS)


FORGED = {
    "unfinished": marked,
    "finished": lambda office: marked(office, **{"relvmoiscsi:done": SAYS}),
    "lost": of_a_lost_disk,
    "SR": of_an_sr,
}
WORDS = [
    ("discard", "copy", "--with-vms", "--dry-run"),
    ("discard", "copy", "--yes"),
    ("discard", "twice", "--yes"),
    ("clone", "copy", "web", "--isolated", "lab", "--yes"),
    ("map", "twice"),
    RESTORE,
]


@pytest.mark.parametrize("forged", FORGED)
def test_such_a_text_is_quoted_and_no_advice(halted, pool_command, forged):
    FORGED[forged](halted)
    for words in WORDS:
        ran = pool_command(*words)
        text = " ".join((ran.out + ran.err).split())
        assert "on the master" not in text.replace(repr(SAYS), ""), text
    if forged in ("unfinished", "finished"):
        assert "'evil'" in pool_command("discard", "copy", "--yes").err
