// Drives the published `e2b` and `@e2b/code-interpreter` packages for Node, unmodified, against an engine. Only
// E2B_API_URL, E2B_SANDBOX_URL and E2B_API_KEY are set.

import assert from 'node:assert/strict'
import { Sandbox, NotFoundError, SandboxError, Template } from 'e2b'
import { Sandbox as CodeSandbox } from '@e2b/code-interpreter'

async function until(condition, what) {
  const deadline = Date.now() + 30_000
  while (Date.now() < deadline) {
    if (await condition()) return
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  assert.fail(`waited in vain: ${what}`)
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

// E-071, E-080 to E-086
const result = await box.commands.run('echo $GREETING; echo problem >&2')
assert.equal(result.stdout, 'hello\n')
assert.equal(result.stderr, 'problem\n')
await assert.rejects(box.commands.run('exit 3'), (error) => error.exitCode === 3)
const cat = await box.commands.run('cat', { background: true, stdin: true })
await box.commands.sendStdin(cat.pid, 'typed\n')
await box.commands.closeStdin(cat.pid)
assert.equal((await cat.wait()).stdout, 'typed\n')
const sleeper = await box.commands.run('sleep 300', { background: true, timeoutMs: 0 })
assert.ok((await box.commands.list()).some((entry) => entry.pid === sleeper.pid))
assert.equal(await box.commands.kill(sleeper.pid), true)
let output = ''
const terminal = await box.pty.create({ cols: 80, rows: 24, onData: (data) => (output += Buffer.from(data).toString()) })
await box.pty.resize(terminal.pid, { cols: 90, rows: 30 })
await box.pty.sendInput(terminal.pid, Buffer.from('stty size; exit\n'))
await terminal.wait()
assert.match(output, /30 90/)

// E-090 to E-093, E-100, E-101
await box.files.write('d/a.txt', 'Hello, ä')
assert.equal(await box.files.read('d/a.txt'), 'Hello, ä')
await box.files.write('empty', '')
assert.equal(await box.files.read('empty'), '')
assert.deepEqual((await box.files.list('d')).map((entry) => entry.name), ['a.txt'])
assert.equal(await box.files.exists('missing'), false)
const seen = []
const watch = await box.files.watchDir('d', (event) => seen.push(event.name))
await box.files.rename('d/a.txt', 'd/b.txt')
await until(() => seen.includes('b.txt') || seen.includes('a.txt'), 'an event')
await watch.stop()
await box.files.remove('d')
const large = new Uint8Array(5 << 20).fill(120)
await box.files.write('large', large.buffer)
assert.equal((await box.files.read('large', { format: 'bytes' })).length, large.length)

// E-005, E-007, E-010
await box.files.write('signed.txt', 'by address')
assert.equal(await (await fetch(await box.downloadUrl('signed.txt'))).text(), 'by address')
assert.match(box.getHost(8000), /^8000-e[0-9a-f]{15}--default\.localhost:\d+$/)

// E-034, E-039, E-040, E-041, E-120
await box.setTimeout(600_000)
assert.equal((await box.getMetrics()).length, 1)
assert.equal(await box.isRunning(), true)
assert.equal(await box.pause(), true)
assert.equal(await box.isRunning(), false)
const again = await Sandbox.connect(box.sandboxId)
assert.equal(await again.files.read('signed.txt'), 'by address')

// E-126
await assert.rejects(box.createSnapshot(), /501/)
assert.equal(await Template.exists('base'), true)
assert.equal(await box.kill(), true)
assert.equal(await box.kill(), false)

// E-110 to E-118
const interpreter = await CodeSandbox.create()
assert.equal((await interpreter.runCode('x = 20\nx + 1')).text, '21')
assert.equal((await interpreter.runCode('1/0')).error.name, 'ZeroDivisionError')
const context = await interpreter.createCodeContext({ cwd: '/tmp' })
assert.equal((await interpreter.runCode('import os; os.getcwd()', { context })).text, '/tmp')
await interpreter.removeCodeContext(context)
let streamed = ''
await interpreter.runCode("print('ä')", { onStdout: (message) => (streamed += message.line) })
assert.equal(streamed, 'ä\n')
await interpreter.kill()
console.log('passed')
