# SPDX-License-Identifier: LGPL-2.1-only
"""`relvmoiscsi pool discard` of a copy with clones that an interrupted run has left."""

from relvmoiscsi.pool.vms import inventory


def test_no_answer_advises_an_option_that_is_refused(lab, copy, pool_command):
    lab.vm("web", lab.vdi("Production", "root disk")[0])
    assert pool_command("clone", copy, "web", "--name", "web too", "--yes").status == 0
    (vm,) = lab.pool.db.refs("VM", name_label="web too")
    config = lab.pool.db.get("VM", vm, "other_config")
    lab.pool.db.set("VM", vm, "other_config", {key: text for key, text in config.items() if key != inventory.DONE})
    lab.pool.db.set("VM", vm, "is_a_template", True)
    dry = pool_command("discard", copy, "--dry-run")
    assert "with --yes alone, the run would be refused: add --leave-vms\n" in dry.out
    for more in ((), ("--with-vms",)):
        ran = pool_command("discard", copy, "--yes", *more)
        assert ran.status == 4 and f"`xe vm-destroy uuid={lab.pool.db.get('VM', vm, 'uuid')}`" in ran.err
    lab.pool.api.vms.vm_destroy("", vm)
    assert pool_command("discard", copy, "--yes").status == 0
