# SPDX-License-Identifier: LGPL-2.1-only
"""What the user cinder may run as root, by the rules that are installed and the rootwrap that reads them."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from cinder.tests.unit import test
from oslo_rootwrap import wrapper

from relvmoiscsi_cinder.command import give_identities
from relvmoiscsi_cinder.place import on_this_host

FILTERS = Path(__file__).resolve().parents[1] / "etc/cinder/rootwrap.d"
SR = "5cd1ad2e-3de1-4d44-8086-8c23494508a5"
DEVICES = ("/dev/sdb", "/dev/shm-vg/volume-5", "/dev/mapper/36001405aa", "/dev/disk/by-id/dm-uuid-mpath-36001405aa",
           "/dev/drbd1000", "/dev/stack-volumes/volume-5cd1ad2e")  # fmt: skip
ASKED = ("--json", "--block-device")
YES = (*ASKED, "--yes", "--not-in-use")
RESIGNATURE = (*YES, "--again", "--sr-uuid", SR, "--vdis")


class TestRootwrap(test.TestCase):
    def setUp(self):
        super().setUp()
        self.programs = self.enterContext(tempfile.TemporaryDirectory())
        for name in ("relvmoiscsi", "sh"):
            Path(self.programs, name).touch(0o755)
        self.filters = wrapper.load_filters([str(FILTERS)])

    def may_run(self, *argv):
        try:
            found = wrapper.match_filter(self.filters, list(argv), exec_dirs=[self.programs])
        except (wrapper.NoFilterMatched, wrapper.FilterMatchNotExecutable):
            return False
        assert found.get_command(list(argv), exec_dirs=[self.programs])[0] == os.path.join(self.programs, argv[0])
        return True

    def test_each_call_of_the_layer_is_allowed(self):
        """A source with a cut run needs all three."""
        calls = []

        def execute(*argv, run_as_root):
            self.assertTrue(self.may_run(*argv), argv)
            calls.append(argv[1])
            return json.dumps({"state": "unfinished" if len(calls) % 4 == 1 else "clean"}), ""

        for device in DEVICES:
            give_identities(execute, on_this_host(device), SR, "all")
        self.assertEqual(["show", "recover", "show", "resignature"] * len(DEVICES), calls)

    def test_a_link_that_leads_to_a_file_is_refused_by_the_rule_and_by_the_command(self):
        """The user cinder may write to /dev/shm; no expression tells where a link leads."""
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            Path(folder, "image").write_bytes(bytes(1 << 20))
            link = Path(folder, "link")
            link.symlink_to(Path(folder, "image"))
            for argv in (("show", str(link), *ASKED), ("resignature", str(link), *RESIGNATURE, "all")):
                self.assertFalse(self.may_run("relvmoiscsi", *argv))
                command = [sys.executable, "-m", "relvmoiscsi", *argv]
                ran = subprocess.run(command, check=False, capture_output=True, text=True)
                self.assertEqual(2, ran.returncode, ran.stderr)
                self.assertIn("is no block device", json.loads(ran.stdout)["error"]["message"])

    def test_a_line_feed_at_the_end_of_a_word_is_refused(self):
        """`$` of an expression is also before the last line feed."""
        for argv in (
            ("show", "/dev/sdb", *ASKED),
            ("recover", "/dev/sdb", *YES),
            ("resignature", "/dev/sdb", *RESIGNATURE, "all"),
        ):
            self.assertTrue(self.may_run("relvmoiscsi", *argv))
            for number in range(len(argv)):
                words = [word + "\n" * (at == number) for at, word in enumerate(argv)]
                self.assertFalse(self.may_run("relvmoiscsi", *words), words)

    def test_nothing_else_is_allowed(self):
        self.assertTrue(self.may_run("relvmoiscsi", "show", "/dev/sdb", *ASKED))
        for argv in (
            ("show", "/etc/shadow", *ASKED),
            ("show", "/dev/../etc/shadow", *ASKED),
            ("show", "/dev/.hidden", *ASKED),
            *(("show", f"/dev/{folder}/3", *ASKED) for folder in ("shm", "mqueue", "hugepages", "fd", "pts")),
            ("show", "/dev/", *ASKED),
            ("show", "/dev/sdb", "--json"),
            ("resignature", "/dev/sdb", "--json", *RESIGNATURE[2:], "all"),
            ("show", "/dev/sdb", *ASKED, "--map-out", "/etc/ld.so.preload"),
            ("show", "iscsi://10.0.0.6/iqn.a/0", *ASKED),
            ("show", "--chap-file=/root/.ssh/id_rsa", *ASKED),
            ("recover", "/dev/sdb", *YES, "--map-out", "/etc/ld.so.preload"),
            ("resignature", "/dev/sdb", *RESIGNATURE, "none"),
            ("resignature", "/dev/sdb", *RESIGNATURE, "all", "--map-out", "/etc/ld.so.preload"),
            ("resignature", "/dev/sdb", *YES, "--again", "--map", "/etc/shadow", "--vdis", "all"),
            ("resignature", "/dev/sdb", *YES, "--again", "--sr-uuid", "../etc", "--vdis", "all"),
            ("pool", "luns", "--pool", "10.0.0.6", "--password-file", "/etc/shadow"),
            ("settings", "--vdis", "one"),
            (),
        ):
            self.assertFalse(self.may_run("relvmoiscsi", *argv), argv)
        self.assertFalse(self.may_run("sh", "-c", "id"))
