# SPDX-License-Identifier: LGPL-2.1-only
"""Secrets that killed runs of `relvmoiscsi pool` have left: who lists and destroys them."""

import pytest

from kit.pool.errors import XenError
from relvmoiscsi.pool.commands import secrets_command


def killed(lab):
    """A Secret that a run has left which was killed long ago."""
    return lab.pool.db.create("secret", value="x", other_config={"relvmoiscsi:run": "20260101T000000Z one"})


def test_what_killed_runs_have_left_is_cleaned_where_somebody_says_so(lab, world, clone, pool_command):
    left = killed(lab)
    assert not pool_command("luns").err
    ran = pool_command("attach", clone, "--dry-run", "--clean-secrets")
    assert "1 Secrets of killed runs would be destroyed" in ran.err and left in lab.pool.db.refs("secret")
    ran = pool_command("attach", clone, "--yes", "--clean-secrets")
    assert "1 Secrets of killed runs were destroyed" in ran.err and left not in lab.pool.db.refs("secret")

    lab.pool.api.host_plugins.functions["relvmoiscsi"] = world.plugin
    left = killed(lab)  # and where no target is asked
    assert "1 Secrets of killed runs were destroyed" in pool_command("luns", "--hba", "--clean-secrets").err
    assert left not in lab.pool.db.refs("secret")


def test_the_answer_is_not_lost_when_secrets_cannot_be_cleaned(lab, clone, pool_command):
    def before(method, params):
        if method == "secret.get_all":
            raise XenError("RBAC_PERMISSION_DENIED", method, "No permission in user session")

    lab.pool.api.before = before
    ran = pool_command("attach", clone, "--yes", "--json", "--clean-secrets")
    assert ran.status == 0 and ran.json["attach_results"][0]["status"] == "attached"
    assert "could not be destroyed: The user of this session may not call secret.get_all" in ran.err


@pytest.fixture
def orphan(lab):
    """A Secret that a call has left, with a password that no SR has any more."""
    return lab.pool.db.create("secret", value="of a volume")


@pytest.fixture
def secrets(pool_command, tmp_path):
    """`relvmoiscsi pool secrets` with that password."""
    (tmp_path / "password").touch(0o600)
    (tmp_path / "password").write_text("of a volume\n")
    return lambda *words: pool_command("secrets", "--chap-password-file", tmp_path / "password", *words)


def test_secrets_of_nobody_are_listed_and_left_without_a_yes(lab, pool_command, orphan, secrets, type_in, monkeypatch):
    monkeypatch.setattr(secrets_command.time, "sleep", lambda _: pytest.fail("nobody has agreed"))
    uuid, ran = lab.pool.db.get("secret", orphan, "uuid"), secrets()
    assert (ran.status, ran.out.splitlines()[0]) == (0, uuid)
    assert "1 Secrets hold a CHAP password and are unused; --remove destroys the Secrets." in ran.out
    assert secrets("--json").json == {"secrets": [uuid], "removed": False}
    assert "no unused Secret" in pool_command("secrets").out
    assert secrets("--remove").status == 2
    type_in("no\n")
    ran = secrets("--remove")
    assert ran.status == 4 and uuid in ran.err and lab.pool.db.exists("secret", orphan)


def test_secrets_are_removed_after_a_second_look(lab, orphan, secrets, monkeypatch):
    """The one of a call that was under way is gone, or named, by then."""
    young, waits = lab.pool.db.create("secret", value="of a volume"), []

    def sleep(seconds):
        waits.append(seconds)
        lab.pool.db.set("pool", lab.pool.pool, "other_config", {"call": young})

    monkeypatch.setattr(secrets_command.time, "sleep", sleep)
    ran = secrets("--remove", "--yes")
    assert (ran.status, ran.out, waits) == (0, "1 Secrets were destroyed.\n", [300.0])
    assert lab.pool.db.exists("secret", young) and not lab.pool.db.exists("secret", orphan)
