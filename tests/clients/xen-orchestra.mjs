// SPDX-License-Identifier: LGPL-2.1-only
//
//   XENSERVER_HOST=https://xs1.example XENSERVER_USER=root XENSERVER_PASSWORD=... \
//       node tests/clients/xen-orchestra.mjs TARGET IQN SCSIID [SCSIID]
//
// Makes the calls of docs/xen-orchestra.rst by xen-api, which is xo-server's own client: gives a clone new identities,
// attaches its SR to every host, and forgets it again. A second clone gets its identities by the host plugin. Prints
// what came as JSON. The array must have mapped the clones, and nobody may need them.
//
// XEN_API is the module of xen-api, if it is not beside this file; TRANSPORT is auto, json-rpc or xml-rpc.
// Source of the order of calls: xen-orchestra packages/xo-server/src/xapi/mixins/storage.mjs, reattachSr and forgetSr.

const { createClient } = await import(process.env.XEN_API ?? 'xen-api')
const { XENSERVER_HOST: url, XENSERVER_USER: user, XENSERVER_PASSWORD: password, TRANSPORT: transport } = process.env
const [target, targetIQN, SCSIid, bySecond] = process.argv.slice(2)

// The error that xapi answers; an answer without an error is one too many.
const errorOf = async promise =>
  promise.then(
    answer => ({ code: 'no error', params: [answer] }),
    ({ code, params, message }) => (code === undefined ? { code: message, params: [] } : { code, params })
  )

// Waits for what the event loop is to tell, at most half a minute.
const until = async (what, isTrue) => {
  for (const end = Date.now() + 30e3; !isTrue(); ) {
    if (Date.now() > end) {
      throw new Error(`the events did not tell of ${what}`)
    }
    await new Promise(resolve => setTimeout(resolve, 20))
  }
}

const xapi = createClient({ url, auth: { user, password }, allowUnauthorized: true, transport, debounce: 20 })
await xapi.connect()
await xapi.objectsFetched
const { master } = xapi.pool
const hosts = (await xapi.getAllRecords('host')).map(host => host.$ref)
const known = () => Object.values(xapi.objects.indexes.type.SR ?? {}).map(sr => sr.uuid)
const told = { hosts: hosts.length, iommu: (await xapi.getRecord('host', master)).chipset_info.iommu, before: known() }

// step 1: new identities. The success of SR.create is an error
const config = { target, targetIQN, SCSIid }
const create = ['SR.create', master, config, 0, 'x', '', 'relvmoiscsi', 'user', true, {}]
told.list = await errorOf(xapi.call('SR.probe', master, { target, targetIQN }, 'lvmoiscsi', {}))
told.created = await errorOf(xapi.call(...create))
told.createdAgain = await errorOf(xapi.callAsync(...create))
const plugin = ['host.call_plugin', master, 'relvmoiscsi']
if (bySecond !== undefined) {
  told.plugin = JSON.parse(await xapi.callAsync(...plugin, 'resignature', { scsi_id: bySecond, clear_metadata_vdi: 'true' }))
}
told.classified = JSON.parse(await xapi.call(...plugin, 'classify', {}))
told.noPlugin = await errorOf(xapi.call('host.call_plugin', master, 'relvmoiscsi-', 'classify', {}))

// step 2: the UUID of the new SR
told.probed = await xapi.call('SR.probe', master, config, 'relvmoiscsi', {})
const uuid = /<new_uuid>\s*([0-9a-f-]{36})/.exec(told.probed)[1]

// step 3: each host lists the LUNs
for (const host of hosts) {
  await errorOf(xapi.call('SR.probe', host, { target, targetIQN }, 'lvmoiscsi', {}))
}

// step 4: reattachSr
const sr = await xapi.call('SR.introduce', uuid, 'Production copy', 'forget it, never destroy it', 'lvmoiscsi', 'user', true, {})
const pbds = []
for (const host of hosts) {
  pbds.push(await xapi.call('PBD.create', { host, SR: sr, device_config: config }))
}
for (const pbd of pbds) {
  await xapi.callAsync('PBD.plug', pbd)
}
await xapi.callAsync('SR.scan', sr)
await until('the SR and its VDIs', () => known().includes(uuid))
await xapi.barrier()
const mine = type => Object.values(xapi.objects.indexes.type[type] ?? {}).filter(object => object.SR === sr)
told.attached = { uuid, pbds: mine('PBD').map(pbd => pbd.currently_attached), vdis: mine('VDI').length }

// step 5: protect the SR. `indestructible` stops SR.destroy
await xapi.setFieldEntries('SR', sr, 'other_config', { gc: 'false', indestructible: 'true' })
for (const pbd of pbds) {
  await xapi.callAsync('PBD.unplug', pbd)
}
if ((await xapi.getField('SR', sr, 'other_config')).indestructible === 'true') {
  told.destroyed = await errorOf(xapi.callAsync('SR.destroy', sr))
}

// step 6: forgetSr
await xapi.callAsync('SR.forget', sr)
await until('the end of the SR', () => !known().includes(uuid))
await xapi.barrier()
told.forgotten = { pbds: mine('PBD').length, vdis: mine('VDI').length, after: known() }

process.stdout.write(JSON.stringify(told) + '\n')
await xapi.disconnect()
process.exit(0) // the event loop waits for its last answer
