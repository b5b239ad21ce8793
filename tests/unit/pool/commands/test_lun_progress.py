# SPDX-License-Identifier: LGPL-2.1-only
"""How far `relvmoiscsi pool` on LUNs is: bars in a terminal, lines elsewhere, and a terminal that is lost."""

import errno
import sys

import pytest

from kit.streams import Unwritable
from relvmoiscsi import wording
from relvmoiscsi.pool import attach, progress
from relvmoiscsi.pool.calls import PoolFailure


def test_in_a_terminal_there_is_a_bar_for_each_lun_at_work(monkeypatch, terminal):
    bars = []

    class Tqdm:
        def __init__(self, **options):
            self.options, self.n, self.is_closed = options, 0, False
            bars.append(self)

        def refresh(self):
            self.shown = f"{self.n} of {self.total}"

        def close(self):
            self.is_closed = True

    monkeypatch.setattr(progress, "_tqdm", lambda: Tqdm)
    with progress.shown(terminal, {"a": 2, "b": 2}, 2) as tell:
        for what in (("a", "resignature", "begun"), ("b", "resignature", "begun"), ("a", "resignature", "over")):
            tell(*what)
        tell("a", "attach", "begun")
        assert bars[0].shown == "1 of 4"
        tell("b", "resignature", "ended")  # it has no more steps

    assert [bar.options["position"] for bar in bars] == [0, 1, 2, 1]
    assert bars[0].shown == "1 of 2" and all(bar.is_closed for bar in bars)


@pytest.mark.parametrize(
    "steps, jobs, told",
    [
        (
            {"a": 2},
            1,
            [("a", "resignature", "over", True), ("a", "attach", "begun", True), ("a", "attach", "over", False)],
        ),
        # it had its identities already; with two at a time, the first end tells no rate
        ({"a": 1, "b": 2}, 1, [("a", "attach", "over", True), ("b", "resignature", "over", True)]),
        ({"a": 1, "b": 2}, 2, [("a", "attach", "over", False), ("b", "resignature", "over", True)]),
        # what has failed is no work done, and has no steps left
        ({"a": 2, "b": 1}, 1, [("a", "resignature", "ended", False), ("b", "attach", "over", False)]),
        ({"a": 2, "b": 2}, 1, [("b", "resignature", "over", True), ("b", "attach", "ended", True)]),
    ],
)
def test_without_the_library_a_terminal_has_lines_with_the_remaining_time(monkeypatch, terminal, steps, jobs, told):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(wording, "ESTIMATE_SECONDS", 0)
    words = {"begun": "started", "over": "finished", "ended": "failed"}
    with progress.shown(terminal, steps, jobs) as tell:
        for lun, step, how, _ in told:
            tell(lun, step, how)

    lines = [line.partition(",") for line in terminal.getvalue().splitlines()]
    assert [(line, left.endswith(" left")) for line, _, left in lines] == [
        (f"relvmoiscsi: {lun} {step} {words[how]}", has_left) for lun, step, how, has_left in told
    ]


def test_a_lost_terminal_stops_no_attach_and_a_failure_between_two_steps_is_told(lab, pool_command, monkeypatch):
    """The probe behind a resignature fails. Whoever ran the command over ssh is gone."""

    stderr, clones = Unwritable(errno.EPIPE), [lab.clone(name) for name in ("Production", "Testing")]
    identified = attach.identified

    def probed(calls, pool, lun):
        if lun.scsi_id == clones[0]:
            raise PoolFailure("The probe has failed.")
        return identified(calls, pool, lun)

    monkeypatch.setattr(attach, "identified", probed)
    monkeypatch.setattr(sys, "stderr", stderr)
    ran = pool_command("attach", *clones, "--yes", "--leave-others")
    assert ran.status == 9 and f"{clones[1]}: attached" in ran.out, ran.out
    assert f"relvmoiscsi: {clones[0]} resignature failed\n" in stderr.tried


def test_a_discard_shows_its_steps_also_where_nobody_looks(lab, copy, pool_command):
    """It said nothing, however many copies it took apart."""
    uuid = next(sr["uuid"] for sr in lab.pool.db.records("SR").values() if sr["name_label"] == copy)
    ran = pool_command("discard", "--all", "--yes")
    steps = [f"relvmoiscsi: SR 'a copy' ({uuid}): discard {how}" for how in ("begins", "is done")]
    assert [line for line in ran.err.splitlines() if "discard" in line] == steps
    assert pool_command("discard", uuid, "--yes", "--quiet").err == ""
