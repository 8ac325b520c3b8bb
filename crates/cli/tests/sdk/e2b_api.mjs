// Drives the published `e2b` and `@e2b/code-interpreter` packages for Node, unmodified, through every method they have,
// against an engine. Only E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY are set. Prints each method's result as JSON.

import assert from 'node:assert/strict'
import { Sandbox, NotFoundError, FileNotFoundError, InvalidArgumentError, SandboxError, Secret, Template, Volume } from 'e2b'
import { Sandbox as CodeSandbox } from '@e2b/code-interpreter'

async function until(condition, what) {
  const deadline = Date.now() + 30_000
  while (Date.now() < deadline) {
    if (await condition()) return
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  assert.fail(`waited in vain: ${what}`)
}

const rows = {}
function shows(result, ...methods) {
  for (const method of methods) {
    assert.ok(!(method in rows), `${method} has two cases`)
    rows[method] = result
  }
}

// E-126: an error that says so, also where a list or a stream is read for it.
async function unsupported(action, ...methods) {
  await assert.rejects(async () => action(), /501/)
  shows('501', ...methods)
}

// E-020, E-030, E-035, E-037
const box = await Sandbox.create({ timeoutMs: 120_000, metadata: { user: 'ann', 'a b': 'c&d' }, envs: { GREETING: 'hello' } })
const info = await box.getInfo()
assert.equal(info.sandboxId, box.sandboxId)
assert.deepEqual(info.metadata, { user: 'ann', 'a b': 'c&d' })
const pages = Sandbox.list({ query: { metadata: { 'a b': 'c&d' } } })
assert.deepEqual((await pages.nextItems()).map((found) => found.sandboxId), [box.sandboxId])
await assert.rejects(Sandbox.create('no-such-template'), SandboxError)
await assert.rejects(Sandbox.getInfo('enothing--default'), NotFoundError)
assert.equal(await Sandbox.kill('enothing--default'), false)
await assert.rejects(Sandbox.connect('enothing--default'), NotFoundError)
await assert.rejects(Sandbox.create({ timeoutMs: 10 ** 15 }), /400.*timeout/s)
await assert.rejects(box.setTimeout(-1000), /400.*timeout/s)
shows('works', 'Sandbox.create', 'Sandbox.getInfo', 'Sandbox.list')

// E-071, E-080 to E-086
const result = await box.commands.run('echo $GREETING; echo problem >&2')
assert.equal(result.stdout, 'hello\n')
assert.equal(result.stderr, 'problem\n')
await assert.rejects(box.commands.run('exit 3'), (error) => error.exitCode === 3)
await assert.rejects(box.commands.run('true', { cwd: '/no/such' }), InvalidArgumentError)
await assert.rejects(box.commands.sendStdin(4_000_000, 'x'), NotFoundError)
assert.equal(await box.commands.kill(4_000_000), false)
const cat = await box.commands.run('cat', { background: true, stdin: true })
await box.commands.sendStdin(cat.pid, 'typed\n')
await box.commands.closeStdin(cat.pid)
assert.equal((await cat.wait()).stdout, 'typed\n')
const sleeper = await box.commands.run('sleep 300', { background: true, timeoutMs: 0 })
assert.ok((await box.commands.list()).some((entry) => entry.pid === sleeper.pid))
const joined = await box.commands.connect(sleeper.pid)
assert.equal(joined.pid, sleeper.pid)
assert.equal(await box.commands.kill(sleeper.pid), true)
await assert.rejects(joined.wait())
shows('works', ...['run', 'list', 'sendStdin', 'closeStdin', 'connect', 'kill'].map((name) => `Sandbox.commands.${name}`))
let output = ''
const terminal = await box.pty.create({ cols: 80, rows: 24, onData: (data) => (output += Buffer.from(data).toString()) })
await box.pty.resize(terminal.pid, { cols: 90, rows: 30 })
await box.pty.sendInput(terminal.pid, Buffer.from('stty size; exit\n'))
await terminal.wait()
assert.match(output, /30 90/)
const second = await box.pty.create({ cols: 80, rows: 24, onData: () => {}, timeoutMs: 0 })
assert.equal((await box.pty.connect(second.pid, { onData: () => {} })).pid, second.pid)
assert.equal(await box.pty.kill(second.pid), true)
shows('works', ...['create', 'connect', 'resize', 'sendInput', 'kill'].map((name) => `Sandbox.pty.${name}`))

// E-090 to E-093, E-100, E-101
await box.files.write('d/a.txt', 'Hello, ä')
assert.equal(await box.files.read('d/a.txt'), 'Hello, ä')
await box.files.write('empty', '')
assert.equal(await box.files.read('empty'), '')
assert.deepEqual((await box.files.list('d')).map((entry) => entry.name), ['a.txt'])
assert.equal(await box.files.exists('missing'), false)
await assert.rejects(box.files.read('missing'), FileNotFoundError)
await assert.rejects(box.files.list('missing'), FileNotFoundError)
assert.equal((await box.files.getInfo('empty')).size, 0)
assert.equal(await box.files.makeDir('made/deep'), true)
assert.equal(await box.files.makeDir('made/deep'), false)
assert.equal((await box.files.writeFiles([{ path: 'made/a', data: '1' }, { path: 'made/b', data: '2' }])).length, 2)
assert.equal(await box.files.read('made/b'), '2')
const seen = []
const watch = await box.files.watchDir('d', (event) => seen.push(event.name))
await box.files.rename('d/a.txt', 'd/b.txt')
await until(() => seen.includes('b.txt') || seen.includes('a.txt'), 'an event')
await watch.stop()
await box.files.remove('d')
const large = new Uint8Array(5 << 20).fill(120)
await box.files.write('large', large.buffer)
assert.equal((await box.files.read('large', { format: 'bytes' })).length, large.length)
const fileMethods = ['write', 'writeFiles', 'read', 'list', 'exists', 'getInfo', 'makeDir', 'rename', 'remove', 'watchDir']
shows('works', ...fileMethods.map((name) => `Sandbox.files.${name}`))

// E-005, E-007, E-010
await box.files.write('signed.txt', 'by address')
assert.equal(await (await fetch(await box.downloadUrl('signed.txt'))).text(), 'by address')
const upload = new FormData()
upload.set('file', new Blob(['uploaded']), 'x')
assert.equal((await fetch(await box.uploadUrl('up.txt'), { method: 'POST', body: upload })).status, 200)
assert.equal(await box.files.read('up.txt'), 'uploaded')
assert.match(box.getHost(8000), /^8000-e[0-9a-f]{15}--default\.localhost:\d+$/)
shows('works', 'Sandbox.downloadUrl', 'Sandbox.uploadUrl', 'Sandbox.getHost')

// E-124
const { git } = box
const shell = async (command) => (await box.commands.run(command)).stdout
await git.init('remote.git', { bare: true, initialBranch: 'main' })
await git.init('repo', { initialBranch: 'main' })
await git.configureUser('Ann', 'ann@example.com', { scope: 'local', path: 'repo' })
await git.setConfig('core.abbrev', '12', { scope: 'local', path: 'repo' })
assert.equal(await git.getConfig('core.abbrev', { scope: 'local', path: 'repo' }), '12')
await box.files.write('repo/a', '1')
assert.equal((await git.status('repo')).fileStatus.length, 1)
await git.add('repo')
await git.commit('repo', 'first')
await git.remoteAdd('repo', 'origin', '/home/user/remote.git')
assert.equal(await git.remoteGet('repo', 'origin'), '/home/user/remote.git')
await git.push('repo', { remote: 'origin', branch: 'main' })
assert.equal(await shell('git -C remote.git log --format=%s main'), 'first\n')
await git.createBranch('repo', 'other')
assert.equal((await git.branches('repo')).currentBranch, 'other')
await git.checkoutBranch('repo', 'main')
await git.deleteBranch('repo', 'other')
assert.deepEqual((await git.branches('repo')).branches, ['main'])
await git.clone('/home/user/remote.git', { path: 'copy' })
assert.equal(await box.files.read('copy/a'), '1')
await box.files.write('repo/a', '2')
await git.restore('repo', { paths: ['a'], worktree: true })
assert.equal(await box.files.read('repo/a'), '1')
await box.files.write('repo/b', 'b')
await git.add('repo')
await git.commit('repo', 'second')
await git.push('repo', { remote: 'origin', branch: 'main' })
await git.pull('copy', { remote: 'origin', branch: 'main' })
assert.equal(await box.files.read('copy/b'), 'b')
await git.reset('repo', { mode: 'hard', target: 'HEAD~1' })
assert.equal(await box.files.exists('repo/b'), false)
await git.dangerouslyAuthenticate({ username: 'ann', password: 'secret' })
assert.match(await shell('cat ~/.git-credentials'), /ann:secret@github.com/)
const gitMethods = [
  'init', 'configureUser', 'setConfig', 'getConfig', 'status', 'add', 'commit', 'remoteAdd', 'remoteGet', 'push', 'createBranch',
  'branches', 'checkoutBranch', 'deleteBranch', 'clone', 'restore', 'pull', 'reset', 'dangerouslyAuthenticate',
]
shows('works', ...gitMethods.map((name) => `Sandbox.git.${name}`))

// E-034, E-039, E-040, E-041, E-120
await box.setTimeout(600_000)
assert.ok((await box.getMetrics())[0].memTotal > 0)
assert.equal(await box.isRunning(), true)
await assert.rejects(box.pause(), /501.*filesystem/s)
assert.equal(await box.pause({ keepMemory: false }), true)
assert.equal(await box.pause({ keepMemory: false }), false)
assert.equal(await box.isRunning(), false)
const again = await Sandbox.connect(box.sandboxId)
assert.equal(await again.files.read('signed.txt'), 'by address')

assert.equal(await box.betaPause({ keepMemory: false }), true)
await box.connect()
shows('works', 'Sandbox.connect', 'Sandbox.setTimeout', 'Sandbox.isRunning')
shows('differs: the current sample only', 'Sandbox.getMetrics')
shows('differs: `mode="filesystem"` works; keeping processes is 501', 'Sandbox.pause', 'Sandbox.betaPause')
await box.updateNetwork({ allowOut: ['192.0.2.1'], denyOut: ['0.0.0.0/0'] })
assert.deepEqual((await box.getInfo()).network?.allowOut ?? ['192.0.2.1'], ['192.0.2.1'])
await assert.rejects(box.updateNetwork({ allowOut: ['example.com'] }), /501/)
shows('differs: names only for a sandbox that was created with names', 'Sandbox.updateNetwork')

// E-044, E-045: the maker of this key accepted that processes are not kept.
const filesOnly = { apiKey: process.env.FILES_ONLY_KEY }
await assert.rejects(box.createSnapshot(), /501.*pause-without-memory/s)
await assert.rejects(Sandbox.createSnapshot('enothing--default', filesOnly), NotFoundError)
await box.files.write('kept', 'first')
const snapshot = await box.createSnapshot({ name: 'mine', ...filesOnly })
assert.deepEqual([snapshot.snapshotId, snapshot.names], ['mine:default', ['mine:default']])
assert.deepEqual((await box.listSnapshots().nextItems()).map((one) => one.snapshotId), ['mine:default'])
await box.files.write('kept', 'second')
const fromSnapshot = await Sandbox.create('mine:default', { timeoutMs: 120_000 })
assert.equal(await fromSnapshot.files.read('kept'), 'first')
await fromSnapshot.kill()
assert.equal(await Sandbox.deleteSnapshot('mine'), true)
assert.equal(await Sandbox.deleteSnapshot('mine'), false)
await assert.rejects(box.fork(), /501/)
const [copy] = await box.fork({ timeoutMs: 120_000, ...filesOnly })
assert.equal(await copy.files.read('kept'), 'second')
assert.notEqual(copy.sandboxId, box.sandboxId)
await copy.kill()
const differs = 'differs: copies files, with a key of `token e2b --pause-without-memory`'
shows(differs, 'Sandbox.createSnapshot', 'Sandbox.fork')
shows('works', 'Sandbox.listSnapshots', 'Sandbox.deleteSnapshot')

// E-126
shows('501: no MCP servers in a sandbox', 'Sandbox.getMcpUrl', 'Sandbox.getMcpToken')
const template = Template().fromImage('host').runCmd('true')
await unsupported(() => Template.build(template, 'mine'), 'Template.build')
await unsupported(() => Template.buildInBackground(template, 'mine'), 'Template.buildInBackground')
await unsupported(() => Template.assignTags('base', ['a']), 'Template.assignTags')
await unsupported(() => Template.removeTags('base', ['a']), 'Template.removeTags')
await unsupported(() => Template.getTags('base'), 'Template.getTags')
shows('501: there are no builds', 'Template.getBuildStatus')
assert.equal(await Template.exists('base'), true)
assert.equal(await Template.aliasExists('no-such-template'), false)
shows('works', 'Template.exists', 'Template.aliasExists')
assert.match(await Template.toDockerfile(template), /RUN true/)
assert.match(await Template.toJSON(template), /true/)
shows('works: sends nothing', 'Template.toDockerfile', 'Template.toJSON')
for (const name of ['create', 'connect', 'getInfo', 'list', 'destroy']) {
  await unsupported(() => (name === 'list' ? Volume.list() : Volume[name]('v')), `Volume.${name}`)
}
const contents = ['exists', 'makeDir', 'readFile', 'remove', 'updateMetadata', 'writeFile']
shows('501: there are no volumes', ...contents.map((name) => `Volume.${name}`))
for (const [name, call] of Object.entries({
  create: () => Secret.create('n', 'v'), update: () => Secret.update('n', 'v'), list: () => Secret.list().nextItems(),
  getInfo: () => Secret.getInfo('n'), destroy: () => Secret.destroy('n'), exists: () => Secret.exists('n'),
})) {
  await unsupported(call, `Secret.${name}`)
}
shows('501 where it is used', 'Secret.fill', 'Secret.iamToken')
assert.equal(await box.kill(), true)
assert.equal(await box.kill(), false)
shows('works', 'Sandbox.kill')

// E-110 to E-118
const interpreter = await CodeSandbox.create()
assert.equal((await interpreter.runCode('x = 20\nx + 1')).text, '21')
assert.equal((await interpreter.runCode('1/0')).error.name, 'ZeroDivisionError')
const context = await interpreter.createCodeContext({ cwd: '/tmp' })
assert.equal((await interpreter.runCode('import os; os.getcwd()', { context })).text, '/tmp')
assert.ok((await interpreter.listCodeContexts()).some((one) => one.id === context.id))
await interpreter.restartCodeContext(context)
await interpreter.removeCodeContext(context)
await assert.rejects(interpreter.runCode('1', { context }), NotFoundError)
let streamed = ''
await interpreter.runCode("print('ä')", { onStdout: (message) => (streamed += message.line) })
assert.equal(streamed, 'ä\n')
await interpreter.kill()
const codeMethods = ['runCode', 'createCodeContext', 'listCodeContexts', 'restartCodeContext', 'removeCodeContext']
shows('works', ...codeMethods.map((name) => `code.Sandbox.${name}`))

// Every public method has a case. The others are marked as internal in the packages' types.
const internal = new Set([
  'constructor', 'resolveApiOpts', 'fileUrl', 'resolveOpts', 'createSandbox', 'forkSandbox', 'connectSandbox', 'getFullInfo',
  'runGit', 'runShell', 'getRemoteUrl', 'resolveRemoteName', 'withRemoteCredentials', 'hasUpstream', 'start', 'handleRequestError',
  'getJupyterRequestUrl', 'includeDiagnostics', 'jupyterUrl', 'supportsStdinClose',
])
const named = (object) => Object.getOwnPropertyNames(object).filter((name) => !internal.has(name))
const methodsOf = (object) => named(object).filter((name) => typeof Object.getOwnPropertyDescriptor(object, name).value === 'function')
const found = new Set()
const add = (prefix, ...objects) => objects.forEach((object) => methodsOf(object).forEach((name) => found.add(`${prefix}.${name}`)))
add('Sandbox', Sandbox, Object.getPrototypeOf(Sandbox), Sandbox.prototype)
add('code.Sandbox', CodeSandbox.prototype)
add('Template', Template)
add('Volume', Volume, Volume.prototype)
add('Secret', Secret)
for (const part of ['files', 'commands', 'pty', 'git']) add(`Sandbox.${part}`, Object.getPrototypeOf(box[part]))
assert.deepEqual([...found].filter((name) => !(name in rows)).sort(), [], 'methods without a case')
assert.deepEqual(Object.keys(rows).filter((name) => !found.has(name)).sort(), [], 'cases without a method')
console.log(JSON.stringify(rows))
