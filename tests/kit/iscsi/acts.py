# SPDX-License-Identifier: LGPL-2.1-only
"""What quirks do. The target calls act(connection, subject, **how) under its lock. If the act returns True, the target
does nothing else at this point.

    point       subject                         kind
    connected   None
    login       login request                   its stage
    arrived     task, before data are asked for operation code
    r2t         (task, R2T)                     operation code
    command     task, before it is carried out  operation code
    result      task with its result            operation code
    answer      (task, PDUs)                    operation code
    done        task, answered                  operation code
    text, logout   request
"""

from . import scsi
from .connection import FIN, RST
from .full_feature import OVERFLOW, UNDERFLOW
from .wire import NO_LUN, Pdu

# -- connections ----------------------------------------------------------------------------------------------------


def close(connection, _subject):
    connection.hang_up(FIN)
    return True


def reset(connection, _subject):
    connection.hang_up(RST)
    return True


def silence(connection, _subject):
    """Reads on, and says nothing more."""
    connection.silent = True
    return True


def deafness(connection, _subject):
    """Neither reads nor says anything more, as a stopped process."""
    connection.silent = connection.deaf = True
    return True


def babble(connection, _subject, data):
    connection.send_bytes(data)
    return True


def half(connection, subject, size=48, then=RST):
    """The first `size` bytes of an answer, and the end: RST, or "" for silence."""
    _, pdus = subject
    for pdu in pdus:
        pdu.words[1:4] = connection.stat_sn, connection.exp_cmd_sn, connection.max_cmd_sn
    connection.send_bytes(b"".join(pdu.encoded(*connection.digests) for pdu in pdus)[:size])
    return silence(connection, subject) if not then else connection.hang_up(then) or True


# -- logins ---------------------------------------------------------------------------------------------------------


def refuse(connection, request, status):
    connection.phase.refuse(request, int(status, 16))
    return True


def redirect(connection, request, status="0101", address="{portal}"):
    """To the last portal. Where there are several, the last one redirects nobody."""
    target = connection.target
    last = len(target.portals) - 1
    if last and connection.portal_number == last:
        return None
    host, port = target.portals[last].rsplit(":", 1)
    target.expect_isid(connection.phase, request.lun[:6])
    text = address.format(portal=target.portals[last], host=host, port=port, tpgt=last + 1)
    connection.phase.refuse(request, int(status, 16), text)
    return True


# -- commands and answers -------------------------------------------------------------------------------------------


def status(_connection, task, code):
    task.result = scsi.Result(code)


def sense(_connection, task, key, asc, ascq=0):
    task.result = scsi.check(key, asc, ascq)


def answered(_connection, task, result):
    """This very Result."""
    task.result = result


def fail_response(_connection, task, code=0x01):
    """iSCSI's own response code: 01 is "target failure"."""
    task.result, task.response = scsi.good(), code


def fewer_data(_connection, task, missing=512):
    """GOOD, and data missing at the end, said as a residual."""
    task.result = task.result._replace(data=task.result.data[: max(0, len(task.result.data) - missing)])
    task.residual = (UNDERFLOW, min(missing, task.wanted))


def more_data(_connection, task, surplus=512):
    """GOOD, all data, and a residual that says that there was more."""
    task.residual = (OVERFLOW, surplus)


def ping(connection, _subject, lun=NO_LUN, data=b""):
    connection.phase.ping(lun, data)


def tell(connection, _subject, event, parameters=(0, 1, 0), then=""):
    connection.phase.tell(event, parameters)
    if then:
        connection.hang_up(then)


def reject(connection, task, reason=0x04):
    """Refuses the whole PDU; the task never was."""
    connection.phase.tasks.pop(task.tag, None)
    header = Pdu(0x01, task.flags, lun=task.address, tag=task.tag, words=[task.wanted, task.cmd_sn]).header()
    connection.phase.reject(header, reason)
    return True


def never_answer(_connection, _task):
    """This one command is never answered; the others are."""
    return True


def repeat_data_in(_connection, subject):
    pdus = subject[1]
    first = pdus[0]
    pdus.insert(0, Pdu(first.opcode, 0, lun=first.lun, tag=first.tag, words=first.words, data=first.data))


def spoil(_connection, subject, part):
    subject[1][0].spoil = part


# -- LUNs and sessions ----------------------------------------------------------------------------------------------


def other_lun(connection, task, how=RST):
    """Another LUN comes in its place, and the connection goes."""
    old = task.lun
    connection.target.replace(old.number, naa="6001405fffffffff" + old.naa[:15] + "f", serial="ANOTHER")
    return reset(connection, task) if how == RST else None


def other_lun_with_attention(connection, task):
    """As other_lun, and the session goes on."""
    other_lun(connection, task, how="")
    task.lun = connection.target.lun(task.lun.number)
    sense(connection, task, scsi.ATTENTION, 0x3F, 0x0E)


def unmap(connection, task):
    connection.target.luns.remove(task.lun)
    return reset(connection, task)


def power_cut(connection, _subject):
    connection.target.power_cut()
    return True


def keep_write(connection, task):
    """The connection goes with a write under way, which is carried out later unless its session is ended before."""
    if task.lun is None:
        return None
    offset = scsi.blocks_of(task.cdb)[0] * task.lun.block_size
    connection.session.late.append((task.lun, offset, bytes(task.data)))
    connection.target.note("kept a write", offset)
    return reset(connection, task)
