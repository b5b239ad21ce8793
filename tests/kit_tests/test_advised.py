# SPDX-License-Identifier: LGPL-2.1-only
"""The check of advised commands finds what a person could not run."""

import pytest

from kit.advised import commands_in, problem_of

TEXT = """\
Run `relvmoiscsi undo 'my clone.img'`, then `xe sr-scan uuid=1`.
  next: xe vm-start uuid=2
  xe pbd-plug uuid=PBD
The command relvmoiscsi show is none.
"""


def test_each_command_of_a_text_is_found():
    assert commands_in(TEXT) == [
        "relvmoiscsi undo 'my clone.img'", "xe sr-scan uuid=1", "xe vm-start uuid=2", "xe pbd-plug uuid=PBD",
    ]  # fmt: skip
    assert [problem_of(command) for command in commands_in(TEXT)] == [""] * 4


@pytest.mark.parametrize(
    "command",
    [
        "relvmoiscsi resignature my clone.img",
        "relvmoiscsi resignature -dash.img",
        "relvmoiscsi resignature 'half",
        "relvmoiscsi resignature /dev/sdc --dryrun",
        "relvmoiscsi pool clone",
        "relvmoiscsi poll luns x",
        "xe vm-param-remove param-name=blocked-operations param-key=start",
        "xe vm-begin uuid=1",
        "xe pbd-create sr-uuid=1",
    ],
)
def test_what_nobody_can_run_is_found(command):
    if command == "relvmoiscsi pool clone":
        assert problem_of(command) == "", "the name of a command is no advice to type it"
    else:
        assert problem_of(command)
