# SPDX-License-Identifier: LGPL-2.1-only
"""host.call_plugin: an executable in a directory of the host, one XML-RPC call as its argument.

Source: xen-api ocaml/xapi/xapi_plugins.ml. Simpler than the real one: all hosts are this machine, no time limit.
"""

import os
import subprocess

from . import wire
from .errors import XenError
from .runner import PATH


class HostPlugins:
    """`directories` has the directory of plugins of each host by its reference; `require_live` raises XenError for
    a host that is away.
    """

    def __init__(self, require_live):
        self._require_live = require_live
        self.directories = {}
        self.functions = {}  #: {plugin: function of (host, name, args)}: one that runs in this process

    def call(self, session, host, plugin, function, args):
        self._require_live(host)
        if plugin in self.functions:
            return self.functions[plugin](host, function, args)
        directory = self.directories.get(host)
        if directory is None or plugin not in os.listdir(str(directory)):
            raise XenError("XENAPI_MISSING_PLUGIN", plugin)
        argument = wire.method_call(function, wire.string(session), wire.strings(args))
        try:
            process = subprocess.Popen(
                [os.path.join(str(directory), plugin), argument],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={"PATH": PATH},
                cwd="/",
            )
        except OSError as error:
            raise XenError("XENAPI_PLUGIN_FAILURE", "cannot be started", "", str(error)) from error
        stdout, stderr = process.communicate(timeout=60)
        if process.returncode:
            raise XenError("XENAPI_PLUGIN_FAILURE", "non-zero exit", stdout.decode("utf-8"), stderr.decode("utf-8"))
        return _result(stdout)


def _result(stdout):
    try:
        result = wire.method_response(wire.parse(stdout))
        if isinstance(result, wire.Fault):
            raise XenError("XENAPI_PLUGIN_FAILURE", "fault", result.code, result.text)
        answer = dict(wire.as_structure(result))
        if wire.as_string(answer["Status"]) == "Success":
            return wire.as_string(answer["Value"])
        description = [wire.as_string(item) for item in wire.as_array(answer["ErrorDescription"])]
    except (wire.NotXml, wire.RunTimeTypeError, KeyError) as error:
        text = stdout.decode("utf-8", "replace")
        raise XenError("XENAPI_PLUGIN_FAILURE", "failed to parse plugin output", text, str(error)) from error
    raise XenError(*description)
