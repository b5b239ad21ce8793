# SPDX-License-Identifier: LGPL-2.1-only
"""What leads on from a LUN that is refused for its content: one answer to all its problems, and to the request. Pure.

An answer to the first problem alone leads into the second problem, and an answer without the options of the request
leads to another request. So the message of the first problem has the ways out of all problems:

    a problem that nothing mends             this problem, whatever helps against the others
    problems that a command of LVM mends     each command
    VDIs that cannot be read                 one command that leaves them all behind, with all options as given
"""

from contextlib import contextmanager
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

from relvmoiscsi.device import Device
from relvmoiscsi.errors import (
    DeviceError,
    FormatError,
    Malformed,
    NotFound,
    Place,
    Refused,
    RelvmoiscsiError,
    UsageError,
    reading,
)
from relvmoiscsi.formats.lvm.pv import Label
from relvmoiscsi.resignature.merge.vdi_choice import Chain, choose_chain, leaves, uuids_in_words
from relvmoiscsi.resignature.reading import sm_journals, survey
from relvmoiscsi.resignature.reading.left_behind import leavable, leave
from relvmoiscsi.resignature.reading.lun_contents import CHECK_ORIGINAL, Lun, verify_lun
from relvmoiscsi.resignature.reading.request import OneVdiRequest, ResignatureRequest
from relvmoiscsi.resignature.reading.way_out import told, without
from relvmoiscsi.wording import command_words, counted

_NOTHING_HELPS = "No command mends that on the clone."
#: A round finds one journal of SM that cannot be settled, and all VDIs that cannot be read. SM leaves few journals. A
#: round looks at all volumes, so that a LUN with very many volumes gets fewer rounds.
_MOST_ROUNDS, _MOST_LOOKS = 30, 200000
#: of one message, which a person reads and a shell takes. A writer of the LUN can make very many volumes
_MOST_LEFT_BEHIND, _MOST_COMMANDS = 1000, 20
_MOST_DEFECTS = 5000  #: of the metadata; a copy that is cut has one for each volume, of some thousand
_NO_VDI_REMAINS = "No VDI of the clone would be left."


EVERYTHING = ResignatureRequest()  #: all VDIs, under any ids


class Problems(NamedTuple):
    """The problems of a LUN."""

    found: Tuple[RelvmoiscsiError, ...]
    lun: Optional[Lun] = None  #: the readable content of the LUN, without `Lun.work`; None when nothing can be read
    without: Tuple[str, ...] = ()  #: the VDIs to leave behind; the VDIs of the request are not among them
    left: Tuple[RelvmoiscsiError, ...] = ()  #: the problems of the LUN without these VDIs


def read_problems(device: Device, label: Label, request: ResignatureRequest = EVERYTHING) -> Problems:
    """All problems of a LUN for a request. Raises DeviceError, Refused.

    A failed read, or a refusal, is a problem among others where another problem was found before.
    """
    found: List[RelvmoiscsiError] = []

    def collect(defect: FormatError) -> None:
        if len(found) >= _MOST_DEFECTS:
            raise Malformed("Metadata", Place(device.name, label.offset), f"it has more than {_MOST_DEFECTS} defects")
        found.append(defect)

    try:
        lun = survey.read_contents(device, label, on_defect=collect)
    except FormatError as problem:
        return unsolved(*found, problem)
    except (DeviceError, Refused) as problem:
        if not found:
            raise
        return unsolved(*found, problem)
    problems = problems_of(lun, request)
    return problems._replace(found=(*found, *problems.found), left=(*found, *problems.left))


def problems_of(lun: Lun, request: ResignatureRequest = EVERYTHING) -> Problems:
    """The problems of a LUN as `survey.read_contents` has read it. Raises NotFound for a UUID without a volume."""
    named, known = list(request.without), leavable(lun).difference(request.without)
    left = _problems(lun, named, request.one)
    found = {each.message: each for each in left}  #: a round finds most problems of the round before again
    for _ in range(max(1, min(_MOST_ROUNDS, _MOST_LOOKS // max(1, len(lun.volumes))))):
        new = list(dict.fromkeys(each.way_out.vdi for each in left if each.way_out.vdi in known))
        if not new:
            break
        named += new
        known.difference_update(new)
        left = _problems(lun, named, request.one)
        for each in left:
            found.setdefault(each.message, each)
    return Problems(tuple(found.values()), lun, tuple(named[len(request.without) :]), tuple(left))


def unsolved(*problems: RelvmoiscsiError) -> Problems:
    """Problems of a LUN of which no VDI can be left behind."""
    return Problems(problems, left=problems)


def _problems(lun: Lun, without: Sequence[str], one: Optional[OneVdiRequest]) -> List[FormatError]:
    """The problems of a LUN without some VDIs. Work of SM that goes with a VDI is the only problem: the end of the work
    decides which volumes must be readable, because SM drops a leaf of a snapshot that was not completed.
    """
    found: List[FormatError] = []
    rest = leave(lun, without)[0]
    with reading(found.append):
        rest = rest._replace(work=sm_journals.unfinished_work(rest))
    if any(each.way_out.vdi for each in found):
        return found
    chain = _chain(rest, one)
    verify_lun(rest, found.append, chain.dropped if chain is not None else ())
    return found


def _chain(lun: Lun, one: Optional[OneVdiRequest]) -> Optional[Chain]:
    """The chain of the VDI that a request keeps; None for all VDIs, and when the request itself is refused."""
    try:
        return choose_chain(lun.settled(), one) if one is not None else None
    except (NotFound, Refused, UsageError):
        return None


def refuse_losing_all(lun: Lun, request: ResignatureRequest) -> None:
    """Raises UsageError when no VDI would remain, or when the request leaves its only VDI behind."""
    without, one = request.without, request.one
    if not without:
        return
    rest, lost, _gone = leave(lun, without)
    if one is not None and one.vdi in lost:
        why = "" if one.vdi in without else ", because it was made of a VDI that is left behind"
        raise UsageError(f"VDI {one.vdi} cannot be kept (`vdi`) and be left behind (`without`){why}.").advising(
            "Name another VDI to keep."
        )
    if leaves(lun) and not leaves(rest):
        raise UsageError(f"No VDI of {lun.name} would be left.").advising("Leave fewer VDIs behind (`without`).")


@contextmanager
def telling(device: Device, label: Label, request: ResignatureRequest) -> Iterator[None]:
    """Add what leads on to a FormatError that is raised in the block."""
    try:
        yield
    except FormatError as error:
        tell(error, device.name, read_problems(device, label, request), request)
        raise


def tell(error: FormatError, device_name: str, problems: Problems, request: ResignatureRequest) -> None:
    """Add what leads on from all problems to the message of `error`, one of them.

    `error` stands alone when it is none of the problems that a reader finds.
    """
    if error.message not in [problem.message for problem in problems.found]:
        problems = unsolved(error)._replace(lun=problems.lun)
    left = [problem for problem in problems.left if isinstance(problem, FormatError)]
    # without a sentence where nothing helps, and where the VDI to leave behind came up after the last round
    ways = {problem: told(problem.way_out, device_name) for problem in left}
    hopeless = next((problem for problem in left if not ways[problem][0]), None)
    if hopeless is not None:
        if hopeless.message != error.message:
            error.message += " " + hopeless.message
        advice = [(_NOTHING_HELPS, ""), (CHECK_ORIGINAL, "")]
    else:
        advice = list(ways.values())
        if problems.lun is not None and problems.without:  # these VDIs cannot be read
            rest, lost, _gone = leave(problems.lun, [*request.without, *problems.without])
            asked, lost_before, _gone = leave(problems.lun, request.without)
            remaining, chain = list(leaves(rest)), _chain(asked, request.one)
            if not remaining:
                advice += [(f"{_NO_VDI_REMAINS} {_NOTHING_HELPS}", ""), (CHECK_ORIGINAL, "")]
            elif chain is not None and chain.leaf.name.uuid in lost:
                named = ", ".join(uuids_in_words(remaining))
                kept = f"VDI {chain.leaf.name.uuid} is the VDI to keep."
                advice += [(f"{kept} {_NOTHING_HELPS} These VDIs can be kept: {named}.", ""), (CHECK_ORIGINAL, "")]
            elif len(problems.without) > _MOST_LEFT_BEHIND:
                unread = f"{len(problems.without)} VDIs cannot be read. {_NOTHING_HELPS}"
                advice += [(unread, ""), (CHECK_ORIGINAL, "")]
            else:
                words = request.words or command_words("relvmoiscsi resignature", device_name)
                again = ("--again",) if request.again and "--again" not in words else ()  # else the LUN is done
                others = sorted(lost.difference(lost_before, problems.without))
                advice += [(CHECK_ORIGINAL, ""), (without(words, problems.without, others, again), "")]
        if any(each.way_out.lvm == ("lvremove",) for each in left):
            advice.insert(0, (CHECK_ORIGINAL, ""))  # first: the command loses data
        advice = advice or [(_NOTHING_HELPS, ""), (CHECK_ORIGINAL, "")]
    advice = list(dict.fromkeys(advice))
    more = len(advice) - _MOST_COMMANDS
    for sentences, command in advice[:_MOST_COMMANDS]:
        error.advising(sentences, command)
    if more > 0:
        error.advising(f"Then repeat the command: it names {counted(more, 'more step')}.")
