# SPDX-License-Identifier: LGPL-2.1-only
"""The pool, by XenAPI: records in xapi's database, drivers that the master has registered, findings of other hosts.

A member forwards its calls to the master, so the answers are the same on every host. The host plugin of each other host
(drivers/plugins/relvmoiscsi) returns the findings of that host.
"""

import os
from functools import partial
from typing import Any, List, Mapping, NamedTuple, Optional, Tuple, Union

from relvmoiscsi import __version__
from relvmoiscsi.doctor import finding as findings_
from relvmoiscsi.doctor import host_root
from relvmoiscsi.doctor.driver import PHRASE
from relvmoiscsi.doctor.finding import Finding, ok, problem, unknown, warning
from relvmoiscsi.doctor.needs import KEEPS_ALL, MAKES_ONE, examine_settings
from relvmoiscsi.host.disk import holders, multipath
from relvmoiscsi.host.files import names_in
from relvmoiscsi.host.this_host import Host
from relvmoiscsi.host.xapi.api import AWAY, XapiFailure, local_xapi, own_ref
from relvmoiscsi.host.xapi.other_hosts import srs_of
from relvmoiscsi.host.xapi.stale_volumes import Records, is_attached, vg_command
from relvmoiscsi.sr_types import ISCSI_SR, OWN_TYPES
from relvmoiscsi.threads import Workers
from relvmoiscsi.wording import quoted, said, shell_command, some_of

PLUGIN = "relvmoiscsi"
PLUGIN_SECONDS = 120.0  #: the programs that the plugin runs have their own time limits
HOSTS_AT_ONCE = 8

_MULTIPATH = ("multipath", "multipathd")

_UPGRADE = "rolling_upgrade_in_progress"
_ON_MASTER = "Run `relvmoiscsi doctor` on the master, then `xe-toolstack-restart` there."
_ON_ALL = "Install the same package on every host of the pool, then restart every toolstack, the master's first."

#: version and findings of a host, or the error
Answer = Union[Tuple[str, List[Finding]], Exception]


class PoolFacts(NamedTuple):
    """The records of xapi; keys are references."""

    own_ref: str  #: the host of this process; "" if xapi does not know the host
    master_ref: str
    other_config: Mapping[str, str]
    hosts: Records
    drivers: List[Mapping[str, Any]]  #: SM records of type relvmoiscsi
    types: List[str]  #: SR types that the master has registered since its start
    answers: Mapping[str, Answer]  #: of the host plugins
    pbds: Records
    srs: Records

    def name(self, ref: str) -> str:
        return str(self.hosts.get(ref, {}).get("name_label") or self.hosts.get(ref, {}).get("uuid") or "a host")


def read_pool(here: Host) -> PoolFacts:
    """Ask xapi, and the other hosts through xapi. Raises XapiFailure when xapi does not answer."""
    with local_xapi(here.xapi_socket) as xapi:
        hosts = xapi.records("host")
        pool: Mapping[str, Any] = next(iter(xapi.records("pool").values()), {})
        own = own_ref(hosts, here)

        def ask(ref: str) -> Answer:
            asked = xapi.within(PLUGIN_SECONDS)
            try:
                if ref == own:
                    return str(asked.call("host.call_plugin", ref, PLUGIN, "version", {})), []
                return findings_.from_json(str(asked.call("host.call_plugin", ref, PLUGIN, "doctor", {})))
            except (XapiFailure, ValueError) as error:
                return error

        answers = dict(zip(hosts, Workers(HOSTS_AT_ONCE).run([partial(ask, ref) for ref in hosts])))
        return PoolFacts(
            own,
            str(pool.get("master", "")),
            pool.get("other_config", {}),
            hosts,
            [record for record in xapi.records("SM").values() if str(record.get("type")).lower() == ISCSI_SR.name],
            [str(name).lower() for name in xapi.call("SR.get_supported_types")],
            answers,
            xapi.records("PBD"),
            xapi.records("SR"),
        )


def no_pool(failure: Exception) -> Finding:
    sentence = "xapi does not answer questions about the driver and the other hosts: {}.".format(
        str(getattr(failure, "message", failure)).rstrip(".")[:400]  # the finding has its own advice
    )
    return unknown("pool", sentence, "Start xapi, then run `relvmoiscsi doctor` again as root.")


def examine_pool(here: Host, pool: PoolFacts, info: Optional[Mapping[str, str]]) -> List[Finding]:
    """Return the findings on the pool; `info` is the answer of this host's driver."""
    return [
        examine_registration(pool),
        examine_record(here, pool, info),
        *examine_hosts(pool),
        examine_initiators(pool),
        *examine_upgrade(pool),
        *examine_ssh(pool),
        *examine_multipathing(here, pool),
        *examine_vdis_of_pool(here, pool),
        *examine_leftovers(pool),
        *examine_volumes(here, pool),
    ]


def examine_registration(pool: PoolFacts) -> Finding:
    lacking = [name for name in OWN_TYPES if name not in pool.types]
    master = f"xapi of the pool's master, {said(pool.name(pool.master_ref))},"
    if not lacking:
        return ok("registration", f"{master} has registered both drivers.")
    sentence = f"{master} has not registered {' and '.join(lacking)}: SR.create of that type fails."
    return (problem if ISCSI_SR.name in lacking else warning)("registration", sentence, _ON_MASTER)


def examine_record(here: Host, pool: PoolFacts, info: Optional[Mapping[str, str]]) -> Finding:
    """Check the SM record, which `xe sm-list` prints on any host."""
    detects = f"`xe sm-list | grep {quoted(PHRASE)}`, by which CloudStack detects it,"
    if not pool.drivers:
        sentence = f"{detects} prints nothing: xapi's database has no SM record of type {ISCSI_SR.name}."
        return problem("sm-record", sentence, _ON_ALL)
    record = pool.drivers[0]
    name, description = str(record.get("name_label", "")), str(record.get("name_description", ""))
    file, version = str(record.get("driver_filename", "")), str(record.get("version", ""))
    if PHRASE not in name + "\n" + description:
        return problem("sm-record", f'{detects} prints nothing: the record says "{name}".', _ON_ALL)
    if not host_root.is_program(here, file):
        sentence = f"The SM record names {file}, which this host lacks; the next start of its xapi removes the record."
        return problem("sm-record", sentence, _ON_ALL)
    if info is not None and (info["name"], info["driver_version"]) != (name, version):
        of_driver = f'"{info["name"]}", version {info["driver_version"]}'
        sentence = f'The SM record says "{name}", version {version}; the driver of this host says {of_driver}.'
        return warning("sm-record", sentence, _ON_ALL)
    return ok("sm-record", f'{detects} finds "{name}", version {version}, {file}.')


def examine_hosts(pool: PoolFacts) -> List[Finding]:
    """Check that every host has the package, in the same version; add the findings of each host."""
    found = []
    if not pool.own_ref:
        sentence = "xapi does not know this host by the INSTALLATION_UUID in /etc/xensource-inventory."
        found.append(unknown("hosts", sentence, "Run `relvmoiscsi doctor` on the running host."))
    for ref, answer in pool.answers.items():
        host = pool.name(ref)
        if isinstance(answer, Exception):
            found.append(_no_answer(answer, host)._replace(host="" if ref == pool.own_ref else host))
            continue
        version, findings = answer
        if version != __version__:
            sentence = f"{said(host)} has relvmoiscsi {version}, and this command is {__version__}."
            found.append(problem("hosts", sentence, _ON_ALL)._replace(host=host))
        found += [finding._replace(host=host) for finding in findings if finding.status != findings_.OK]
    count = "All hosts of the pool have" if len(pool.hosts) > 1 else "The pool's only host has"
    return found or [ok("hosts", f"{count} relvmoiscsi {__version__}, and no host finds a problem.")]


def _no_answer(failure: Exception, host: str) -> Finding:
    code = failure.code if isinstance(failure, XapiFailure) else ""
    if code == "XENAPI_MISSING_PLUGIN":
        sentence = f"{said(host)} has no complete installation of relvmoiscsi: xapi finds no host plugin there."
        return problem("hosts", sentence, _ON_ALL)
    if code in AWAY:
        sentence = f"{said(host)} cannot be asked: it is offline or just starting."
        return unknown("hosts", sentence, "Run `relvmoiscsi doctor` again when the host is online.")
    sentence = f"{said(host)} cannot be asked, or its answer cannot be read: {str(failure)[:400]}"
    return unknown("hosts", sentence, "Run `relvmoiscsi doctor` on that host.")


def examine_initiators(pool: PoolFacts) -> Finding:
    """Check that xapi has an initiator name for each host: the driver logs in with this name."""
    nameless = [
        said(pool.name(ref))
        for ref, host in pool.hosts.items()
        if not (host.get("iscsi_iqn") or host.get("other_config", {}).get("iscsi_iqn"))
    ]
    if not nameless:
        return ok("initiator", "xapi has an iSCSI initiator name for every host.")
    sentence = f"xapi has no iSCSI initiator name for {some_of(nameless)}: a call over iSCSI fails there with error 97."
    return problem("initiator", sentence, "Set the name: `xe host-param-set uuid=<host> iscsi_iqn=<IQN>`.")


def examine_upgrade(pool: PoolFacts) -> List[Finding]:
    if _UPGRADE not in pool.other_config:
        return []
    sentence = "A rolling pool upgrade is under way, and xapi refuses SR.create until it has ended."
    return [problem("upgrade", sentence, "Upgrade the remaining hosts and reinstall relvmoiscsi on each of them.")]


def examine_ssh(pool: PoolFacts) -> List[Finding]:
    """Check SSH, which hosts since XenServer 8 may have disabled: CloudStack detects the driver by an SSH command."""
    off = [said(pool.name(ref)) for ref, host in pool.hosts.items() if host.get("ssh_enabled") is False]
    if not off:
        return []
    sentence = f"SSH is disabled on {some_of(off)}; CloudStack detects the driver by SSH, and does not find it."
    return [warning("ssh", sentence, "For CloudStack: `xe host-enable-ssh` on these hosts, then reconnect them.")]


def examine_leftovers(pool: PoolFacts) -> List[Finding]:
    """Look for SRs of relvmoiscsi's types. xapi has such a record during a call, and keeps the record if xapi dies.

    No LUN has the UUID of such an SR.
    """
    uuids = [str(sr.get("uuid", "")) for sr in pool.srs.values() if str(sr.get("type")).lower() in OWN_TYPES]
    if not uuids:
        return []
    sentence = f"xapi has SRs of type {' or '.join(OWN_TYPES)}, which exist only during a call: {some_of(uuids)}."
    commands = [f"`{shell_command('xe sr-forget', f'uuid={uuid}')}`" for uuid in uuids]
    advice = (
        f"If no SR.create is under way: {some_of(commands)}. If the call had a CHAP password, a Secret remains: "
        "`relvmoiscsi pool secrets --remove`."
    )
    return [warning("leftover-srs", sentence, advice)]


def examine_volumes(here: Host, pool: PoolFacts) -> List[Finding]:
    """Look for active volumes of an SR that this host has not attached; host/xapi/stale_volumes.py has the cause."""
    disks = names_in(here.at("sys/block"))
    found = []
    for disk in [each for each in disks if not each.startswith("dm-")]:
        for sr_uuid in srs_of(holders.stacked(disk, here)):
            if is_attached(sr_uuid, pool.pbds, pool.srs, pool.own_ref) is False:
                sentence = (
                    f"Volumes of the SR {sr_uuid} are active on the disk {disk}, and that SR is not attached here."
                )
                advice = (
                    "A plug of that SR may have failed beside a clone of its LUN. Run "
                    f"{vg_command(sr_uuid)} here, resignature the clone, then plug the SR."
                )
                found.append(warning("active-volumes", sentence, advice))
    return found


def examine_vdis_of_pool(here: Host, pool: PoolFacts) -> List[Finding]:
    """Do all hosts have the same setting `vdis`? A call runs on the master, and any host may become the master."""
    told = {ref: answer[1] for ref, answer in pool.answers.items() if not isinstance(answer, Exception)}
    if pool.own_ref in told:
        told[pool.own_ref] = examine_settings(here)

    def hosts_that_say(sentence: str) -> List[str]:
        return [said(pool.name(ref)) for ref, found in told.items() if sentence in (each.sentence for each in found)]

    one, every = hosts_that_say(MAKES_ONE), hosts_that_say(KEEPS_ALL)
    if not one or not every:
        return []
    sentence = (
        f"The SR driver makes each LUN one with a single VDI on {some_of(one)}, and keeps every VDI on "
        f"{some_of(every)}: what a call does depends on which host is the pool's master."
    )
    advice = "Run `relvmoiscsi settings --vdis one`, or `all`, on the hosts with the wrong setting."
    return [warning("settings", sentence, advice)]


def examine_multipathing(here: Host, pool: PoolFacts) -> List[Finding]:
    """Is multipathing on for all hosts or for none, and does this host have the programs?"""
    on = {ref: multipath.is_on({}, host.get("other_config", {})) for ref, host in pool.hosts.items()}
    if len(set(on.values())) > 1:
        sentence = (
            f"Multipathing is on for {some_of([said(pool.name(ref)) for ref in on if on[ref]])}, and off for "
            f"{some_of([said(pool.name(ref)) for ref in on if not on[ref]])}."
        )
        return [warning("multipathing", sentence, "Set it alike on all hosts of the pool, in maintenance mode.")]
    if not on.get(pool.own_ref, False):
        return []
    paths = [[os.path.join(directory, name) for directory in host_root.XAPI_PATH.split(":")] for name in _MULTIPATH]
    if not all(any(host_root.is_program(here, path) for path in of_program) for of_program in paths):
        sentence = "Multipathing is on for this host, and it lacks multipath or multipathd."
        return [problem("multipathing", sentence, "Install the package device-mapper-multipath.")]
    return [ok("multipathing", "Multipathing is on.")]
